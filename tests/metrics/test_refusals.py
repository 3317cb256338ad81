"""Wrong names and options raise an error with the value and the way out."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import metrics

from . import value_of

LOGITS = np.asarray([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], "float32")
LABELS = np.asarray([0, 1, 2, 1])


@pytest.mark.parametrize("given", [[metrics.ece], "ece", {}, {"ece": "ece"}, LOGITS])
def test_metrics_have_names(given, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"mapping from names to metrics, got .*named\(NAME\)"):
        metrics.values_of(given, LOGITS, LABELS)
    with pytest.raises(TypeError, match="must be a metric or a mapping"):
        metrics.Stream(given)


def test_names_have_a_nearest_name():
    with pytest.raises(TypeError, match=r"no option 'bins'.*did you mean 'num_bins'"):
        metrics.ece(LOGITS, LABELS, bins=10)
    with pytest.raises(ValueError, match=r"did you mean 'ece'"):
        metrics.named("eec")
    with pytest.raises(AttributeError, match="did you mean 'adaptive_ece'"):
        _ = metrics.adaptiv_ece
    with pytest.raises(AttributeError, match=r"'mcnemar', which is in calib_jax\.inference"):
        _ = metrics.mcnemar


CHOICES = ("edges", "binning", "classes", "score", "positive", "kind", "estimator")
WRONG = dict.fromkeys(CHOICES, ("nonsense", "must be one of .*, got 'nonsense'"))
WRONG |= {
    **{"num_bins": (0, "num_bins must be at least 1, got 0"), "k": (0, "at least 1, got 0")},
    **{
        "level": (90, "level must be a fraction"),
        "coverage": (90, r"coverage must lie in \[0, 1\]"),
    },
    **{"risk": (5, "risk must lie in"), "threshold": (99, "threshold must lie in")},
    **{"bandwidth": (0, "bandwidth must be greater than 0"), "p": (0.5, "p must be at least 1")},
    **{"costs": (((0, 1),), "costs must be finite"), "abstain_cost": (np.inf, "must be a finite")},
}


@pytest.mark.parametrize("option", WRONG)
def test_every_metric_validates_its_options(option):
    value, message = WRONG[option]
    members = [one for one in metrics.catalogue().values() if option in one.defaults()]
    assert members
    for metric in members:
        with pytest.raises(ValueError, match=message):
            value_of(metric, jnp.asarray(LOGITS), LABELS % 2, **{option: value})
