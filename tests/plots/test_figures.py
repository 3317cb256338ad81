"""Figures show their numbers at their places; files and elements of pages; wrong input."""

import hashlib
import os
import pickle
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jax.numpy as jnp
import jaxtyping
import matplotlib
import numpy as np
import pytest

from calib_jax import plots
from calib_jax.plots.segmentation import colored

from . import boxes, table, words

FALSE, TRUE = [0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 0.75, 1.0]
EPOCHS = np.array([1.0, 2.0, 3.0])
CURVES = {
    "nll": {"focal": np.array([[3.0, 2.0, 1.0], [5.0, 4.0, 3.0]]), "brier": [1.0, 1.0, 1.0]},
    "ece": {"focal": [[0.3, 0.2, 0.1]], "brier": [0.2, 0.2, 0.2]},
}


# --------------------------------------------------------------------------------------------
# ROC curves and histograms.


def test_a_roc_curve_and_its_area():
    figure = plots.roc(jnp.asarray(FALSE), jnp.asarray(TRUE))
    line = figure.axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xydata(), np.transpose([FALSE, TRUE]))
    assert "AUROC 0.750" in words(figure)
    assert "AUROC 0.700 [0.600, 0.800]" in words(plots.roc(FALSE, TRUE, auroc=(0.7, 0.6, 0.8)))
    svg = plots.inline_svg(plots.roc([0, 0.5, 1], [0, 0.7, 1]), "roc", description="A curve.")
    assert "false positive rate 0.488\ntrue positive rate: 0.682" in svg


def test_roc_curves_by_name_differ_without_color():
    names = [f"method {k}" for k in range(6)]
    areas = {name: k / 10 for k, name in enumerate(names)}
    figure = plots.roc(dict.fromkeys(names, FALSE), dict.fromkeys(names, TRUE), auroc=areas)
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == [f"method {k}: AUROC 0.{k}00" for k in range(6)]
    assert len({str(line._unscaled_dash_pattern) for line in figure.axes[0].lines[:6]}) == 6


@pytest.mark.parametrize(("unit", "scale"), [("percent", 100 / 200), ("count", 1)])
def test_right_and_wrong_are_stacked_on_the_bins(unit, scale):
    figure = plots.bin_strength(table(weight=[20, 0, 60, 120]), unit=unit)
    right = np.array([(0.0, 0.2, 0, 6), (0.5, 0.6, 0, 30), (0.6, 1.0, 0, 84)])
    wrong = np.array([(0.0, 0.2, 6, 20), (0.5, 0.6, 30, 60), (0.6, 1.0, 84, 120)])
    factor = [1, 1, scale, scale]
    np.testing.assert_allclose(boxes(figure.axes[0], "right"), right * factor)
    np.testing.assert_allclose(boxes(figure.axes[0], "wrong"), wrong * factor)
    assert "accuracy 0.600, n = 200\n4 bins" in words(figure)


def test_a_grid_shares_its_axes_and_has_no_empty_frame():
    named = {f"epoch {epoch}": table() for epoch in (50, 100, 150, 200, 250)}
    for draw in (plots.bin_strength, plots.reliability_grid):
        figure = draw(named, columns=3)
        titles = [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes]
        assert titles == list(named)
        first = figure.axes[0]
        assert all(first.get_shared_y_axes().joined(first, axes) for axes in figure.axes)
        # The axes above the gap have their own label.
        labelled = [bool(axes.get_xlabel()) for axes in figure.axes]
        assert labelled == [False, False, True, True, True]


def test_confidences_are_counted_in_closed_bins():
    # Every edge belongs to the bin below it, 0 to the first.
    confidence, hit = jnp.array([0.0, 0.25, 0.5, 0.5000001, 0.75, 1.0]), [1, 1, 0, 1, 0, 1]
    figure = plots.confidence_histogram(confidence, hit, num_bins=4, unit="count")
    right, wrong = (patch.get_data() for patch in figure.axes[0].patches)
    np.testing.assert_array_equal(right.edges, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(right.values, [2, 0, 1, 1])
    np.testing.assert_array_equal(wrong.values, [0, 1, 1, 0])
    assert "right: n = 4, mean 0.438" in words(figure)


@pytest.mark.parametrize(
    ("unit", "right", "wrong"), [("group", [75, 25], [0, 100]), ("percent", [60, 20], [0, 20])]
)
def test_histograms_are_shares_by_weight(unit, right, wrong):
    confidence, hit, weights = [0.1, 0.3, 0.9, 0.8, -7], [1, 1, 1, 0, 5], [2, 1, 1, 1, 0]
    figure = plots.confidence_histogram(confidence, hit, weights, num_bins=2, unit=unit)
    actual = [patch.get_data().values for patch in figure.axes[0].patches]
    np.testing.assert_allclose(actual, [right, wrong])


def test_histograms_over_decades_are_shares_on_one_axis():
    edges = np.logspace(-3, 3, 7)
    counts = {"epoch 1": [0, 0, 0, 1, 3, 0], "epoch 9": [0, 0, 2, 0, 0, 0]}
    (axes,) = plots.log_histograms(counts, edges, quantity="norm").axes
    assert axes.get_xscale() == "log"
    first, last = axes.patches
    # One more bin is shown at both ends.
    np.testing.assert_allclose(first.get_data().values, [0, 0, 25, 75, 0])
    np.testing.assert_allclose(last.get_data().values, [0, 100, 0, 0, 0])
    np.testing.assert_allclose(first.get_data().edges, edges[1:7])


# --------------------------------------------------------------------------------------------
# Values with intervals.

FOUND = {
    "cross-entropy": {"ECE": (0.04, 0.035, 0.045), "NLL": 0.3},
    # Below its own percentile interval, as a calibration error may be.
    "focal": {"NLL": (0.25, 0.24, 0.27), "ECE": (0.01, 0.012, 0.02)},
    "brier": {"NLL": 0.4},
}


def rows(axes):
    """Map each label of the row of panels to (value, low, high) as drawn."""
    names = [label.get_text() for label in axes.figure.axes[0].get_yticklabels()]
    points = {int(line.get_ydata()[0]): line.get_xdata()[0] for line in axes.lines}
    segments = [segment for each in axes.collections for segment in each.get_segments()]
    ends = {int(y0): (x0, x1) for (x0, y0), (x1, y1) in segments if y0 == y1}
    return {names[row]: (value, *ends.get(row, ())) for row, value in points.items()}


def test_methods_stand_below_each_other_in_a_panel_for_each_metric():
    figure = plots.intervals(FOUND, level=0.95, n=1000)
    first, second = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["ECE", "NLL"]
    # No point lies outside a drawn interval: that of focal is left out.
    assert rows(first) == {"cross-entropy": FOUND["cross-entropy"]["ECE"], "focal": (0.01,)}
    assert rows(second)["focal"] == FOUND["focal"]["NLL"]
    assert rows(second)["brier"] == (0.4,)
    bottom, top = first.get_ylim()
    assert top < 0 < 2 < bottom  # the first method is at the top
    said = " ".join(figure.get_supxlabel().split())
    assert said.startswith("Point: value; bar: 95% interval; n = 1,000. † outside")
    (axes,) = plots.intervals({"ECE": (jnp.array(0.5), np.float32(0.25), 0.75), "MCE": 1}).axes
    assert rows(axes) == {"ECE": (0.5, 0.25, 0.75), "MCE": (1.0,)}


def test_a_long_name_of_a_metric_leaves_room_in_its_panel():
    """A browser's letters may be wider than those that were measured."""
    metrics = ("nll", "ece", "squared_calibration_error")
    methods = ("resnet50", "temperature of resnet50_cross_entropy_seed1")
    figure = plots.intervals({name: dict.fromkeys(metrics, (0.5, 0.4, 0.6)) for name in methods})
    figure.draw_without_rendering()
    for axes in figure.axes:
        panel = axes.get_window_extent().width
        assert axes.xaxis.label.get_window_extent().width < 0.9 * panel


# --------------------------------------------------------------------------------------------
# Pixels.

LABELS = np.array([[0, 1, 2], [2, 1, 9]])
PREDICTED = np.array([[0, 2, 2], [2, 1, 0]])
WEIGHTS = np.array([[1, 1, 1], [0, 1, 0]])
IMAGE = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
CONFIDENCE = np.linspace(0.3, 1, 6).reshape(2, 3)


def test_every_panel_shows_its_pixels():
    arrays = IMAGE, LABELS, PREDICTED, CONFIDENCE
    figure = plots.segmentation(*arrays, weights=WEIGHTS, class_names=("sky", "road"), title="one")
    image, label, prediction, confidence, error = figure.axes
    np.testing.assert_array_equal(image.images[0].get_array(), IMAGE)
    palette = colored(np.arange(20))
    void = (WEIGHTS == 0)[..., None]
    wanted = np.where(void, 255, palette[LABELS])
    np.testing.assert_array_equal(label.images[0].get_array(), wanted)
    wrong = np.where((LABELS != PREDICTED)[..., None], [213, 94, 0], 225)
    np.testing.assert_array_equal(error.images[0].get_array(), np.where(void, 255, wrong))
    np.testing.assert_array_equal(prediction.images[0].get_array(), palette[PREDICTED])
    np.testing.assert_array_equal(confidence.images[0].get_array(), CONFIDENCE)
    assert error.get_title("left") == "error (25.0% wrong)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sky", "road", "2"]
    halves = jnp.asarray(IMAGE / 32, jnp.bfloat16), jnp.asarray(CONFIDENCE > 0.5, jnp.bfloat16)
    ignored = plots.segmentation(
        halves[0], LABELS - 1, PREDICTED, halves[1], class_names=("sky", "road")
    )
    for axes, wanted in ((0, IMAGE / 32), (3, CONFIDENCE > 0.5)):
        np.testing.assert_array_equal(ignored.axes[axes].images[0].get_array(), wanted)
    assert ignored.legends[0].get_texts()[0].get_text() == "-1"
    bottoms = [axes.get_window_extent().y0 for axes in figure.axes]
    np.testing.assert_allclose(bottoms, bottoms[0])
    distances = np.abs(palette[:, None].astype(int) - palette).sum(axis=-1)
    assert distances[~np.eye(20, dtype=bool)].min() > 60


# --------------------------------------------------------------------------------------------
# Training curves.


def test_a_curve_is_the_mean_over_runs_and_its_band_their_range():
    figure = plots.training_curves(CURVES, EPOCHS, title="validation", axis="temperature")
    first, second = figure.axes[:2]
    assert [axes.get_ylabel() for axes in (first, second)] == ["nll", "ece"]
    focal, brier = first.get_lines()
    np.testing.assert_allclose(focal.get_xydata(), np.stack([EPOCHS, [4.0, 3.0, 2.0]], axis=1))
    np.testing.assert_allclose(brier.get_ydata(), 1.0)
    (band,) = first.collections  # one run has no range
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 5.0)
    assert not second.collections
    note = figure.legends[0].get_title().get_text()
    assert note == "Mean over n = 1 or 2 runs; the band is their range."
    assert first.get_xlabel() == "temperature"


def test_a_spike_of_the_first_epochs_does_not_stretch_a_panel():
    epochs, late = np.arange(1.0, 11.0), np.linspace(0.4, 0.3, 8)
    figure = plots.training_curves({"nll": {"focal": [50.0, 5.0, *late]}}, epochs)
    low, high = figure.axes[0].get_ylim()
    assert low < 0.3 < 0.4 < high < 0.5
    assert "first epochs lie outside" in figure.legends[0].get_title().get_text()
    # A spike at the end is no start of a training: it is shown.
    figure = plots.training_curves({"nll": {"focal": [*late, 5.0, 50.0]}}, epochs)
    assert figure.axes[0].get_ylim()[1] > 50
    assert figure.legends[0].get_title().get_text() == ""


# --------------------------------------------------------------------------------------------
# Refusals.

REFUSED = {
    "lengths": (lambda: plots.reliability_diagram(table(weight=[1, 2])), "weight has 2"),
    "negative weight": (lambda: plots.reliability_diagram(table(weight=[1, 0, -3, 1])), "not neg"),
    "percent": (lambda: plots.reliability_diagram(table(accuracy=[30, 0, 50, 70])), "accuracy"),
    "no table": (lambda: plots.reliability_diagram([0.5]), r"no lower.*metrics\.reliability"),
    "ECE in text": (lambda: plots.reliability_diagram(table(), ece="8 %"), "ece must hold numbers"),
    "level": (lambda: plots.reliability_diagram(table(), level=95), "level must be a fraction"),
    "logits": (lambda: plots.confidence_histogram([2.5], [1]), "confidence must lie in"),
    "descending": (lambda: plots.roc(FALSE, TRUE[::-1]), "must ascend"),
    "estimates": (lambda: plots.intervals([0.1, 0.2]), "estimates must map names to values"),
    "NaN": (lambda: plots.intervals({"a": {"ECE": np.nan}}), "ECE of 'a' must be a finite number"),
    "pixels": (
        lambda: plots.segmentation(IMAGE, LABELS, PREDICTED.T, CONFIDENCE),
        r"predicted must be \(2, 3\)",
    ),
    "an image of 16 bits": (
        lambda: plots.segmentation(IMAGE + np.uint16(255), LABELS, PREDICTED, CONFIDENCE),
        "image must be bytes, or numbers",
    ),
    "bytes of confidence": (
        lambda: plots.segmentation(IMAGE, LABELS, PREDICTED, LABELS),
        "confidence must lie in",
    ),
    "no metric": (lambda: plots.intervals({"a": {}}), "must map names to values"),
    "no histogram": (lambda: plots.log_histograms({}, [1, 2], quantity="a"), "nothing to draw"),
    "infinite": (
        lambda: plots.log_histograms({"a": [np.inf]}, [1, 2], quantity="a"),
        "'a' must have 1 counts",
    ),
    "ending": (lambda: plots.save(plots.intervals({"a": 1}), "a.bmp"), "end it in .png"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused(case, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    call, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError, AttributeError), match=message):
        call()


ROOT = Path(__file__).resolve().parents[2]
ENDINGS = ("png", "svg", "pdf")

ALONE = """
import hashlib, sys
from tests.plots import table
from calib_jax import plots
assert "matplotlib" not in sys.modules, "importing plots imports matplotlib"
figure = plots.reliability_diagram(table())
for path in sys.argv[1:]:
    plots.save(figure, path)
    print(hashlib.sha256(open(path, "rb").read()).hexdigest())
assert "matplotlib.pyplot" not in sys.modules, "a picture imports pyplot"
"""


@pytest.mark.slow
def test_equal_pictures_are_equal_files_in_any_process(tmp_path):
    def saved(figure, name):
        paths = [tmp_path / f"{name}.{ending}" for ending in ENDINGS]
        for path in paths:
            plots.save(figure, path)
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]

    figure = plots.reliability_diagram(table())
    first = saved(figure, "first")
    assert saved(figure, "again") == first
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        assert saved(plots.reliability_diagram(table()), "other settings") == first
    paths = [str(tmp_path / f"alone.{ending}") for ending in ENDINGS]
    environment = {**os.environ, "PYTHONHASHSEED": "123", "SOURCE_DATE_EPOCH": "0"}
    alone = subprocess.run(
        [sys.executable, "-c", ALONE, *paths],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.split() == first


def test_the_files_are_what_their_endings_say(tmp_path):
    figure = plots.reliability_diagram(table())
    for ending, start in (("PNG", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / f"picture.{ending}"
        plots.save(figure, str(path))
        assert path.read_bytes().startswith(start)
    # Conferences refuse Type 3 fonts.
    assert b"/Type3" not in path.read_bytes()


def test_a_notebook_shows_the_figure_and_pickle_keeps_it():
    figure = plots.reliability_diagram(table())
    shown = figure._repr_png_()
    assert shown.startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure))._repr_png_() == shown


def test_settings_of_the_caller_stay():
    before = dict(matplotlib.rcParams)
    plots.reliability_diagram(table())
    assert dict(matplotlib.rcParams) == before


NAMED = "<model> & co, nano#123abc"


def drawn(name="first"):
    figure = plots.reliability_diagram(table(weight=[9.0, 0, 30, 60]), title=NAMED, level=0.9)
    return plots.inline_svg(figure, name, description=NAMED)


def test_an_element_without_references_to_anything_outside():
    svg = drawn()
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == NAMED
    identifiers = [each.attrib["id"] for each in root.iter() if "id" in each.attrib]
    assert len(identifiers) == len(set(identifiers))
    assert all(each.startswith("first-") for each in identifiers)
    referred = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg))
    assert referred == set(identifiers)
    assert "http" not in svg
    assert "<style" not in svg  # it would style the whole page
    texts = [each.text for each in root.iter("text")]
    assert NAMED in texts
    # Colors in attributes would not follow the page.
    assert not re.search(r"(fill|stroke)=\"#", svg)
    assert "var(--c0072b2, #0072b2)" in svg
