"""Sample-dependent focal loss (FLSD): gamma depends on the probability of the true class."""

import numpy as np
import pytest
import scipy.optimize

from calib_jax import losses

from . import checks
from .reference import probabilities, seen_by_weight


def gamma_of(true, thresholds=(0.2, 0.5), gammas=(5.0, 3.0, 3.0)):
    """Return gamma [N]: the first below the first threshold, a threshold opens the next stage."""
    return np.array(
        [
            gammas[0] if p < thresholds[0] else gammas[1] if p < thresholds[1] else gammas[2]
            for p in true
        ]
    )


def flsd(
    logits,
    labels,
    *,
    thresholds=(0.2, 0.5),
    gammas=(5.0, 3.0, 3.0),
    weighting="loss",
    constants_at=None,
):
    """-(1 - p_y)^gamma(p_y) log p_y; gamma is constant between its thresholds."""
    p = seen_by_weight(logits, labels, weighting, constants_at)
    weight = p.rest ** gamma_of(p.true, thresholds, gammas)
    return weight * probabilities(logits, labels).cross_entropy


def flsd53(logits, labels, *, weighting="loss", constants_at=None):
    """FLSD with gamma 5, 3."""
    return flsd(logits, labels, weighting=weighting, constants_at=constants_at)


def flsd53_text(logits, labels, *, weighting="loss", constants_at=None):
    """FLSD with gamma 5, 3 and the threshold of the released text code."""
    return flsd(
        logits, labels, thresholds=(0.19, 0.5), weighting=weighting, constants_at=constants_at
    )


def flsd532(logits, labels, *, weighting="loss", constants_at=None):
    """FLSD with gamma 5, 3, 2."""
    return flsd(
        logits, labels, gammas=(5.0, 3.0, 2.0), weighting=weighting, constants_at=constants_at
    )


def flsd53_gra(logits, labels, *, constants_at=None):
    """FLSD with gamma 5, 3, the weight detached."""
    return flsd(logits, labels, weighting="gradient", constants_at=constants_at)


REFERENCES = {
    "flsd53": flsd53,
    "flsd53_text": flsd53_text,
    "flsd532": flsd532,
    "flsd53_gra": flsd53_gra,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_value_and_gradient(name):
    checks.check_objective(name, REFERENCES[name])


@pytest.mark.parametrize("weighting", ["loss", "gradient"])
def test_options(weighting):
    options = dict(thresholds=(0.3, 0.7), gammas=(4.0, 1.5, 0.0), weighting=weighting)
    checks.check(lambda z, y: losses.flsd(z, y, **options), flsd, *checks.batch(32), **options)


def test_a_threshold_belongs_to_the_stage_above():
    # two equal logits give p_y = 1/2 exactly: gamma is the last one there
    logits, labels = np.zeros((1, 2), np.float32), np.array([0])
    values = losses.flsd(logits, labels, gammas=(5.0, 3.0, 1.0))
    np.testing.assert_allclose(values, 0.5 * np.log(2), rtol=1e-6)


def gradient_ratio(p, gamma):
    """Return the focal gradient over the cross-entropy gradient, from the derivative in p."""
    step = 1e-6 * p
    values = [-((1 - q) ** gamma) * np.log(q) for q in (p + step, p - step)]
    return -p * (values[0] - values[1]) / (2 * step)


@pytest.mark.parametrize("gamma", [1.0, 3.0, 5.0])
def test_gradient_ratio(gamma):
    p = np.linspace(0.05, 0.95, 19)
    ratio = losses.focal_gradient_ratio(p, gamma)
    np.testing.assert_allclose(ratio, gradient_ratio(p, gamma), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.2, 0.25, 0.3, 0.4, 0.45])
def test_gamma_for_equalises_the_gradients(p):
    # gamma_for(p) is the largest gamma whose focal gradient at p is that of cross-entropy
    def excess(gamma):
        return (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * np.log(p) - 1

    gamma = scipy.optimize.brentq(excess, 0.05, 100.0, xtol=1e-13, rtol=1e-13)
    np.testing.assert_allclose(losses.gamma_for(p), gamma, rtol=1e-9)
