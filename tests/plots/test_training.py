"""Training curves and grids of diagrams: what stands where."""

import jaxtyping
import numpy as np
import pytest

from calib_jax import metrics, plots
from calib_jax.plots import style

EPOCHS = np.array([1.0, 2.0, 3.0])
CURVES = {
    "nll": {"focal": np.array([[3.0, 2.0, 1.0], [5.0, 4.0, 3.0]]), "brier": [1.0, 1.0, 1.0]},
    "ece": {"focal": [[0.3, 0.2, 0.1]], "brier": [0.2, 0.2, 0.2]},
}


def test_a_curve_is_the_mean_over_runs_and_its_band_their_range():
    figure = plots.training_curves(CURVES, EPOCHS, title="validation")
    first, second = figure.axes[:2]
    assert [axes.get_ylabel() for axes in (first, second)] == ["nll", "ece"]
    focal, brier = first.get_lines()
    np.testing.assert_allclose(focal.get_xydata(), np.stack([EPOCHS, [4.0, 3.0, 2.0]], axis=1))
    np.testing.assert_allclose(brier.get_ydata(), 1.0)
    (band,) = first.collections  # one run has no range
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 5.0)
    assert not second.collections
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["focal", "brier"]
    note = figure.legends[0].get_title().get_text()
    assert note == "Mean over n = 1 or 2 runs; the band is their range."
    assert first.get_xlabel() == "epoch"
    other = plots.training_curves(CURVES, EPOCHS, axis="temperature")
    assert other.axes[0].get_xlabel() == "temperature"


def test_ten_curves_differ_in_color_line_and_marker_also_at_one_epoch():
    panel = {f"loss {k}": [0.1 * k] for k in range(10)}
    axes = plots.training_curves({"nll": panel}, [1.0]).axes[0]
    lines = axes.get_lines()
    for looks in (
        {line.get_color() for line in lines},
        {str(style.curve_look(k)["linestyle"]) for k in range(10)},
        {line.get_marker() for line in lines},
    ):
        assert len(looks) == 10
    # A line of one point is invisible, so the point has its marker.
    assert all(line.get_marker() != "None" and line.get_markevery() == (0, 1) for line in lines)
    many = [tuple(map(str, style.curve_look(k).values())) for k in range(100)]
    assert len(set(many)) == 100


def test_a_method_looks_the_same_in_all_panels_and_in_the_legend(monkeypatch):
    curves = {"gamma": {"b": [1, 2]}, "NLL": {"a": [1, 2], "b": [2, 3]}, "ECE": {"c": [1, 1]}}
    figure = plots.training_curves(curves, [1, 2])
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == {"a", "b", "c"}
    handles = {handle.get_label(): handle for handle in figure.legends[0].legend_handles}
    lines = [line for axes in figure.axes for line in axes.lines if line.get_label() in shown]
    assert len(lines) == 4
    for line in lines:
        assert line.get_color() == handles[line.get_label()].get_color()
    assert len({handle.get_color() for handle in handles.values()}) == 3
    with pytest.raises(ValueError, match="NLL has no method"):
        plots.training_curves({"NLL": {}}, [1, 2])
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    with pytest.raises(ValueError, match="NLL has no method"):
        plots.training_curves({"NLL": [0.5, 0.4]}, [1, 2])


def test_a_spike_of_the_first_epochs_does_not_stretch_a_panel():
    epochs = np.arange(1.0, 11.0)
    late = np.linspace(0.4, 0.3, 8)
    spiked = {"nll": {"focal": [50.0, 5.0, *late]}}
    figure = plots.training_curves(spiked, epochs)
    low, high = figure.axes[0].get_ylim()
    assert low < 0.3 < 0.4 < high < 0.5
    assert "first epochs lie outside" in figure.legends[0].get_title().get_text()
    # A spike at the end is no start of a training: it is shown.
    diverged = {"nll": {"focal": [*late, 5.0, 50.0]}}
    figure = plots.training_curves(diverged, epochs)
    assert figure.axes[0].get_ylim()[1] > 50
    assert figure.legends[0].get_title().get_text() == ""


def test_curves_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"nll of 'focal' must be \[runs, 2\], got \[2, 3\]"):
        plots.training_curves(CURVES, EPOCHS[:2])
    with pytest.raises(ValueError, match="there is nothing to draw"):
        plots.training_curves({}, EPOCHS)
    with pytest.raises(ValueError, match=r"epochs must ascend, got \[2.0, 1.0\]"):
        plots.training_curves({"nll": {"focal": [1.0, 2.0]}}, [2, 1])
    with pytest.raises(ValueError, match=r"must be \[runs, 1\], got \[0, 1\]"):
        plots.training_curves({"nll": {"focal": np.zeros((0, 1))}}, [1])


def test_histograms_over_decades_are_shares_on_one_axis():
    edges = np.logspace(-3, 3, 7)
    counts = {"epoch 1": [0, 0, 0, 1, 3, 0], "epoch 9": [0, 0, 2, 0, 0, 0]}
    figure = plots.log_histograms(counts, edges, quantity="norm")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    first, last = axes.patches
    np.testing.assert_allclose(
        first.get_data().values, [0, 0, 25, 75, 0]
    )  # one more bin at both ends
    np.testing.assert_allclose(last.get_data().values, [0, 100, 0, 0, 0])
    np.testing.assert_allclose(first.get_data().edges, edges[1:7])
    for wrong, message in (
        ({"a": [1, 2]}, "'a' must have 6 counts"),
        ({"a": [0] * 6}, "one of them positive"),
        ({"a": [np.inf, *[1] * 5]}, "one of them positive"),
        ({}, "nothing to draw"),
    ):
        with pytest.raises(ValueError, match=message):
            plots.log_histograms(wrong, edges, quantity="norm")
    for wrong in (edges - 1, [], edges * np.inf):
        with pytest.raises(ValueError, match="edges must be positive"):
            plots.log_histograms(counts, wrong, quantity="norm")


def tables(count):
    random = np.random.default_rng(0)
    labels = random.integers(3, size=60)
    return {
        f"model {k}": metrics.reliability(
            (2 * random.normal(size=(60, 3))).astype(np.float32), labels, num_bins=5
        )
        for k in range(count)
    }


def test_a_grid_has_a_diagram_for_every_model():
    actual = tables(3)
    figure = plots.reliability_grid(actual, columns=2, ece=dict.fromkeys(actual, 0.25))
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "confidence", "confidence"]
    for axes, (name, table) in zip(figure.axes, actual.items(), strict=True):
        title = axes.get_title("left")
        assert name in title
        assert "0.25" in title
        filled = np.asarray(table.weight) > 0
        bars = axes.containers[0]
        np.testing.assert_allclose(
            [bar.get_height() for bar in bars], np.asarray(table.accuracy)[filled], rtol=1e-6
        )
    with pytest.raises(ValueError, match="there is no table to draw"):
        plots.reliability_grid({})


def test_no_line_breaks_within_a_formula():
    title = r"AdaFocal with a start of $\gamma = 1$ and $\lambda = 1$ on CIFAR-10"
    figure = plots.training_curves({"NLL": {"a": [1, 2]}}, [1, 2], title=title, width=3)
    assert figure.get_suptitle().replace("\n", " ") == title
    lines = figure.get_suptitle().splitlines()
    assert len(lines) > 1
    for line in lines:
        assert line.count("$") % 2 == 0


def test_a_long_legend_makes_room_for_itself():
    few, many = (
        plots.training_curves({"error": {f"method {k}": [0.3, 0.2] for k in range(count)}}, [1, 2])
        for count in (3, 60)
    )
    for figure in (few, many):
        figure.canvas.draw()
    heights = [figure.axes[0].get_window_extent().height for figure in (few, many)]
    assert heights[1] > 0.8 * heights[0]
    legend = many.legends[0].get_window_extent()
    assert legend.y1 < many.axes[0].get_window_extent().y0
    long = plots.training_curves({"error": {"a method of " * 40: [0.3, 0.2]}}, [1, 2])
    long.canvas.draw()
    assert long.legends[0].get_window_extent().width < long.bbox.width
