"""Each value stands in its row, its interval where it reaches."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import inference, plots

FOUND = {
    "cross-entropy": {"ECE": (0.04, 0.035, 0.045), "NLL": 0.3},
    # Below its own percentile interval, as a calibration error may be.
    "focal": {"NLL": (0.25, 0.24, 0.27), "ECE": (0.01, 0.012, 0.02)},
}


def rows(axes):
    """Map each label of the row of panels to (value, low, high) as drawn."""
    names = [label.get_text() for label in axes.figure.axes[0].get_yticklabels()]
    points = {int(line.get_ydata()[0]): line.get_xdata()[0] for line in axes.lines}
    ends = {}
    for collection in axes.collections:
        for (x0, y0), (x1, y1) in collection.get_segments():
            if y0 == y1:
                ends[int(y0)] = (x0, x1)
    return {names[row]: (value, *ends.get(row, ())) for row, value in points.items()}


def test_methods_stand_below_each_other_in_a_panel_for_each_metric():
    figure = plots.intervals(FOUND)
    first, second = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["ECE", "NLL"]
    # No point lies outside a drawn interval: that of focal is left out.
    assert rows(first) == {"cross-entropy": FOUND["cross-entropy"]["ECE"], "focal": (0.01,)}
    assert rows(second) == {"cross-entropy": (0.3,), "focal": FOUND["focal"]["NLL"]}
    # The first method is at the top.
    bottom, top = first.get_ylim()
    assert top < 0 < 1 < bottom


def test_the_text_below_gives_level_and_number():
    said = " ".join(plots.intervals(FOUND, level=0.95, n=1000).get_supxlabel().split())
    assert said.startswith("Point: value; bar: 95% interval; n = 1,000. † outside")
    assert said.endswith("The interval is not drawn.")
    assert plots.intervals({"a": 0.5}).get_supxlabel() == "Point: value."


def test_values_by_name_stand_in_one_panel():
    (axes,) = plots.intervals({"ECE": (jnp.array(0.5), np.float32(0.25), 0.75), "MCE": 1}).axes
    assert rows(axes) == {"ECE": (0.5, 0.25, 0.75), "MCE": (1.0,)}
    bounded = inference.Estimate(0.5, 0.25, 0.75, "noise bound", floor=0.4, p_value=0.01)
    (axes,) = plots.intervals({"ECE": bounded}).axes
    assert rows(axes) == {"ECE": (0.5, 0.25, 0.75)}


def test_a_metric_that_a_method_lacks_is_left_out():
    first, second = plots.intervals({"a": {"ECE": 0.1}, "b": {"ECE": 0.2, "NLL": 0.3}}).axes
    assert rows(first) == {"a": (0.1,), "b": (0.2,)}
    assert rows(second) == {"b": (0.3,)}


@pytest.mark.parametrize(
    ("estimates", "error", "sentence"),
    [
        ({}, ValueError, "no value to draw"),
        ([0.1, 0.2], TypeError, r"estimates must map names to values, got \[0.1, 0.2\]"),
        ({"a": {"ECE": (0.1, 0.3, 0.2)}}, ValueError, "ECE of 'a' .*low is above its high"),
        ({"a": {"ECE": np.nan}}, ValueError, "ECE of 'a' must be finite"),
        ({"a": {"ECE": np.ones(3)}}, ValueError, "ECE of 'a' must be a number"),
        ({"a": (0.1, 0.2)}, ValueError, "intervals: 'a' must be a number or"),
        ({"a": {"ECE": 0.1}, "b": 0.2}, TypeError, "metrics by name, or none"),
    ],
)
def test_wrong_estimates_are_refused(estimates, error, sentence, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    with pytest.raises(error, match=sentence):
        plots.intervals(estimates)
