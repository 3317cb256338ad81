"""Bars of right and wrong predictions add up to what is there."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import plots

from .tables import boxes, table, words


@pytest.mark.parametrize(("unit", "scale"), [("percent", 100 / 200), ("count", 1)])
def test_right_and_wrong_are_stacked_on_the_bins(unit, scale):
    (axes,) = plots.bin_strength(table(weight=[20, 0, 60, 120]), unit=unit).axes
    right = np.array([(0.0, 0.2, 0, 6), (0.5, 0.6, 0, 30), (0.6, 1.0, 0, 84)])
    wrong = np.array([(0.0, 0.2, 6, 20), (0.5, 0.6, 30, 60), (0.6, 1.0, 84, 120)])
    factor = [1, 1, scale, scale]
    np.testing.assert_allclose(boxes(axes, "right"), right * factor)
    np.testing.assert_allclose(boxes(axes, "wrong"), wrong * factor)
    assert "accuracy 0.600, n = 200\n4 bins" in words(
        plots.bin_strength(table(weight=[20, 0, 60, 120]))
    )


def test_tables_by_name_share_axes():
    named = {f"epoch {epoch}": table() for epoch in (50, 100, 150, 200)}
    figure = plots.bin_strength(named, columns=3)
    assert [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes] == list(named)
    first = figure.axes[0]
    for axes in figure.axes[1:]:
        assert first.get_shared_y_axes().joined(first, axes)
    labelled = [axes.get_xlabel() for axes in figure.axes]
    assert labelled == ["", "", "confidence", "confidence"]  # two rows of two


def test_five_tables_leave_no_empty_frame():
    figure = plots.bin_strength({str(k): table() for k in range(5)})
    assert len(figure.axes) == 5
    # The one above the gap has its own labels.
    assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False, False, True, True, True]


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_confidences_are_counted_in_closed_bins(array):
    # Every edge belongs to the bin below it, 0 to the first.
    confidence = array([0.0, 0.25, 0.5, 0.5000001, 0.75, 1.0])
    hit = array([1, 1, 0, 1, 0, 1])
    figure = plots.confidence_histogram(confidence, hit, num_bins=4, unit="count")
    right, wrong = (patch.get_data() for patch in figure.axes[0].patches)
    np.testing.assert_array_equal(right.edges, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(right.values, [2, 0, 1, 1])
    np.testing.assert_array_equal(wrong.values, [0, 1, 1, 0])
    assert "right: n = 4, mean 0.438" in words(figure)


@pytest.mark.parametrize(
    ("unit", "right", "wrong"), [("group", [75, 25], [0, 100]), ("percent", [60, 20], [0, 20])]
)
def test_histograms_are_shares(unit, right, wrong):
    confidence, hit = [0.1, 0.2, 0.3, 0.9, 0.8, -7], [1, 1, 1, 1, 0, 5]
    figure = plots.confidence_histogram(confidence, hit, [1, 1, 1, 1, 1, 0], num_bins=2, unit=unit)
    actual = [patch.get_data().values for patch in figure.axes[0].patches]
    np.testing.assert_allclose(actual, [right, wrong])


def test_weight_k_is_k_copies_in_the_histogram():
    weighted = plots.confidence_histogram([0.3, 0.9], [0, 1], jnp.array([1, 3]))
    copied = plots.confidence_histogram([0.3, 0.9, 0.9, 0.9], [0, 1, 1, 1])
    assert words(weighted) == words(copied)
    for a, b in zip(weighted.axes[0].patches, copied.axes[0].patches, strict=True):
        np.testing.assert_array_equal(a.get_data().values, b.get_data().values)


def test_nobody_is_wrong():
    assert "wrong: n = 0" in words(plots.confidence_histogram([0.9], [True]))


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (([0.5, 0.6], [1]), {}, "confidence has 2, hit has 1"),
        (([], []), {}, "confidence is empty"),
        (([2.5], [1]), {}, r"confidence must lie in \[0, 1\], got 2.5: .* not its logit"),
        (([np.nan], [1]), {}, r"confidence must lie in \[0, 1\], got nan"),
        (([0.5], [3]), {}, "hit must be 0 or 1, got 3"),
        (([0.5], [1], [0]), {}, "weights must be finite"),
        (([0.5], [1], [-1]), {}, "weights must be .* not negative"),
        (([[0.5]], [1]), {}, r"confidence must have one axis, .* got shape \(1, 1\)"),
        (([0.5], [1]), {"unit": "counts"}, "unit must be one of .*did you mean 'count'"),
        (([0.5], [1]), {"num_bins": 0}, "num_bins must be at least 1, got 0"),
    ],
)
def test_a_wrong_histogram_is_refused(arguments, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        plots.confidence_histogram(*arguments, **options)


def test_wrong_tables_are_refused():
    with pytest.raises(ValueError, match="there is no table"):
        plots.bin_strength({})
    with pytest.raises(ValueError, match="did you mean 'percent'"):
        plots.bin_strength(table(), unit="percents")
    with pytest.raises(ValueError, match="columns must be at least 1"):
        plots.bin_strength(table(), columns=0)
    with pytest.raises(TypeError, match="bin_strength: a float has no lower"):
        plots.bin_strength({"a": 1.0})
