"""ROC curves go through their points, and say whose they are."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import plots

from .tables import words

FALSE, TRUE = [0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_a_curve_and_its_area(array):
    figure = plots.roc(array(FALSE), array(TRUE))
    line = figure.axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xydata(), np.transpose([FALSE, TRUE]))
    assert "AUROC 0.750" in words(figure)
    assert "AUROC 0.700 [0.600, 0.800]" in words(plots.roc(FALSE, TRUE, auroc=(0.7, 0.6, 0.8)))


def test_the_values_under_the_pointer_are_those_of_the_drawn_line():
    figure = plots.roc([0, 0.5, 1], [0, 0.7, 1])
    svg = plots.inline_svg(figure, "roc", description="A curve.")
    assert "false positive rate 0.488\ntrue positive rate: 0.682" in svg


def test_curves_by_name_differ_without_colour():
    names = [f"method {k}" for k in range(6)]
    figure = plots.roc(
        dict.fromkeys(names, FALSE),
        dict.fromkeys(names, TRUE),
        auroc={name: k / 10 for k, name in enumerate(names)},
    )
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == [f"method {k}: AUROC 0.{k}00" for k in range(6)]
    dashes = {str(line._unscaled_dash_pattern) for line in figure.axes[0].lines[:6]}
    assert len(dashes) == 6


@pytest.mark.parametrize(
    ("arguments", "options", "error", "sentence"),
    [
        ((FALSE, TRUE[:3]), {}, ValueError, "false_positive_rate has 4, true_positive_rate has 3"),
        (([], []), {}, ValueError, "is empty"),
        ((FALSE, TRUE[::-1]), {}, ValueError, "true_positive_rate must ascend"),
        ((FALSE, [0, np.nan, 1, 1]), {}, ValueError, "a kind without examples"),
        (({"a": FALSE}, TRUE), {}, TypeError, "both by name"),
        (({"a": FALSE}, {"b": TRUE}), {}, ValueError, "the same names"),
        (({}, {}), {}, ValueError, "the same names"),
        (({"a": FALSE}, {"a": TRUE}), {"auroc": {"b": 0.5}}, ValueError, "auroc has the names"),
        (
            ({"a": FALSE, "b": FALSE}, {"a": TRUE, "b": TRUE}),
            {"auroc": 0.5},
            ValueError,
            "auroc must be given by name",
        ),
    ],
)
def test_wrong_curves_are_refused(arguments, options, error, sentence):
    with pytest.raises(error, match=sentence):
        plots.roc(*arguments, **options)
