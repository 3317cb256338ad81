"""Reliability diagrams show the table: nothing more, nothing less, nothing elsewhere."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from calib_jax import plots
from calib_jax.plots import bins, style
from tests.test_doctests import docstrings_of

from . import boxes, table, words

FILLED = [(0.0, 0.2), (0.5, 0.6), (0.6, 1.0)]


def test_bars_gaps_intervals_and_means_are_those_of_the_table():
    diagram, histogram = plots.reliability_diagram(table()).axes
    np.testing.assert_allclose(
        boxes(diagram, "accuracy per bin"),
        [(*edges, 0, top) for edges, top in zip(FILLED, [0.3, 0.5, 0.7], strict=True)],
    )
    np.testing.assert_allclose(
        boxes(histogram),
        [(*edges, 0, top) for edges, top in zip(FILLED, [10, 30, 60], strict=True)],
    )
    assert diagram.get_shared_x_axes().joined(diagram, histogram)
    # Gaps reach from accuracy to confidence.
    over = [(0.5, 0.6, 0.5, 0.55), (0.6, 1.0, 0.7, 0.9)]
    np.testing.assert_allclose(boxes(diagram, "gap: over-confident"), over)
    np.testing.assert_allclose(boxes(diagram, "gap: under-confident"), [(0.0, 0.2, 0.3, 0.1)])
    hatches = {
        bars.patches[0].get_hatch() for bars in diagram.containers if "gap" in str(bars.get_label())
    }
    assert len(hatches) == 2
    assert None not in hatches
    # Intervals and means.
    (bars,) = diagram.containers[-1].lines[2]
    np.testing.assert_allclose(
        bars.get_segments(),
        [[(0.1, 0.1), (0.1, 0.6)], [(0.55, 0.4), (0.55, 0.65)], [(0.9, 0.65), (0.9, 0.8)]],
    )
    drawn = {line.get_label(): line.get_xdata()[0] for line in histogram.lines}
    np.testing.assert_allclose(drawn["overall accuracy"], 0.1 * 0.3 + 0.3 * 0.5 + 0.6 * 0.7)
    np.testing.assert_allclose(drawn["overall confidence"], 0.1 * 0.1 + 0.3 * 0.55 + 0.6 * 0.9)


def test_the_gap_of_an_under_confident_bin_leaves_its_bar_visible():
    """The gap lies inside the bar: both are seen where they overlap, in every kind of diagram."""
    for figure in (
        plots.reliability_diagram(table()),
        plots.reliability_before_after(table(), table()),
        plots.reliability_grid({"a": table()}),
    ):
        canvas = FigureCanvasAgg(figure)
        figure.set_dpi(200)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)
        axes = figure.axes[0]

        def seen(left, right, low, high, color, axes=axes, pixels=pixels):
            (x0, y0), (x1, y1) = axes.transData.transform([(left, low), (right, high)]).astype(int)
            inside = pixels[len(pixels) - y1 : len(pixels) - y0, x0:x1]
            return np.mean(np.abs(inside - 255 * np.array(to_rgb(color))).max(-1) < 4)

        # The bar of the first bin ends at an accuracy of .3, and its confidence is .1.
        assert seen(0.01, 0.08, 0.02, 0.08, style.SKY) > 0.9
        assert seen(0.01, 0.08, 0.12, 0.28, style.SKY) > 0.3
        assert seen(0.01, 0.08, 0.12, 0.28, style.GREEN) > 0.05  # the hatching of the gap


def test_bins_of_few_examples_are_faint_and_show_their_number():
    figure = plots.reliability_diagram(table(weight=[9.0, 0, 30, 60]), level=0.9)
    bars, *_ = figure.axes[0].containers
    assert [bar.get_alpha() for bar in bars.patches] == [0.3, None, None]
    assert [text.get_text() for text in figure.axes[0].texts] == ["n = 9"]
    said = words(figure)
    assert "fewer than 10 examples" in said
    assert "bin mean, 90% interval" in said
    # Weights that are shares do not count examples.
    shares = plots.reliability_diagram(table(weight=[0.1, 0, 0.3, 0.6]))
    assert not shares.axes[0].texts
    assert "fewer than" not in words(shares)


def test_the_caption_says_what_the_number_is():
    said = words(plots.reliability_diagram(table(), title="ResNet-50"))
    ece = 0.1 * 0.2 + 0.3 * 0.05 + 0.6 * 0.2
    for part in ("ResNet-50", f"ECE {ece:.3f}\n", "n = 100, 4 bins\n", "accuracy 0.600"):
        assert part in said
    said = words(plots.reliability_diagram(table(), ece=(0.0834, 0.079, 0.0881)))
    assert "ECE 0.083 [0.079, 0.088]" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lower": [0, 0.25, 0.5, 0.75], "upper": [0.25, 0.5, 0.75, 1]}, "4 bins of equal width"),
        (
            {"weight": [5, 5, 5, 5], "confidence": [0.3] * 4, "accuracy": [0.2] * 4, "low": None},
            "n = 20, 4 bins of equal mass",
        ),
        (
            {"weight": [6, 5, 5, 6], "confidence": [0.3] * 4, "accuracy": [0.2] * 4, "low": None},
            "n = 22, 4 bins of equal mass",
        ),
        ({"weight": [1e6, 0, 2.5e5, 0]}, "n = 1,250,000, 4 bins"),
        ({"weight": [0.5, 0, 0.25, 0]}, "n = 0.75, 4 bins"),
    ],
)
def test_the_caption_says_how_many_and_how_they_were_cut(changes, said):
    text = words(plots.reliability_diagram(table(**changes)))
    assert said in text
    assert (" of equal " in text) == (" of equal " in said)


def test_before_and_after_stand_on_the_same_axes():
    after = table(confidence=[0.3, np.nan, 0.5, 0.7], weight=[10.0, 0, 30, 20])
    figure = plots.reliability_before_after(table(), after, ece=(None, (0.02, 0.01, 0.03)))
    first, second, low, last = figure.axes
    assert first.get_shared_y_axes().joined(first, second)
    assert low.get_shared_y_axes().joined(low, last)
    titles = [axes.get_title(loc="left") for axes in (first, second)]
    assert titles[0].startswith("before\nECE 0.155\n")
    assert titles[1].startswith("after\nECE 0.020 [0.010, 0.030]\n")
    assert "n = 60" in titles[1]
    # The legend has each entry once, whether one diagram has it or both.
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(entries) == len(set(entries))
    assert {"gap: over-confident", "gap: under-confident"} <= set(entries)


def test_bins_of_equal_mass_are_few_by_their_examples_and_named_where_their_edges_are_equal():
    sums = plots.Bins(np.full(3, 0.9), np.full(3, 0.9), np.full(3, 5 / 3), [0.9] * 3, [1, 0.5, 1])
    shown = words(plots.reliability_diagram(sums))
    assert "equal width" not in shown
    assert "3 bins of equal mass" in shown
    assert bins.checked("test", sums).few.all()


test_docstring = docstrings_of("plots")
