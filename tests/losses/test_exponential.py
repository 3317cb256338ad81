"""Losses weighted by a detached exponential of themselves."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .test_brier import brier
from .test_cross_entropy import cross_entropy
from .test_dual_focal import dual_focal
from .test_focal import focal


def exponential_weight(values, temperature=1.0, form="scaled"):
    """Return the weight of the terms `values`, in the four released forms."""
    clipped = np.clip(values, 0.0, temperature)
    return {
        "scaled": lambda: np.exp(clipped / (temperature + 1)) - 1,
        "unscaled": lambda: np.exp(clipped) - 1,
        "no_minus": lambda: np.exp(clipped / (temperature + 1)),
        "pure": lambda: np.exp(values),
    }[form]()


def self_weighted(loss, logits, labels, temperature, form, constants_at, **options):
    """Return loss times the detached exponential of itself."""
    fixed = logits if constants_at is None else constants_at
    weight = exponential_weight(loss(fixed, labels, **options), temperature, form)
    return weight * loss(logits, labels, **options)


def cross_entropy_exp(logits, labels, *, temperature=1.0, form="scaled", constants_at=None):
    """Cross-entropy, weighted."""
    return self_weighted(cross_entropy, logits, labels, temperature, form, constants_at)


def brier_exp(logits, labels, *, temperature=1.0, form="scaled", constants_at=None):
    """Brier score, weighted."""
    return self_weighted(brier, logits, labels, temperature, form, constants_at)


def focal_exp(logits, labels, *, gamma=3.0, temperature=1.0, form="scaled", constants_at=None):
    """Focal loss, weighted."""
    return self_weighted(focal, logits, labels, temperature, form, constants_at, gamma=gamma)


def dual_focal_exp(
    logits,
    labels,
    *,
    gamma=5.0,
    runner_up="below",
    temperature=1.0,
    form="scaled",
    constants_at=None,
):
    """Dual focal loss, weighted."""
    options = {"gamma": gamma, "runner_up": runner_up}
    return self_weighted(dual_focal, logits, labels, temperature, form, constants_at, **options)


def cross_entropy_brier_weight(
    logits, labels, *, temperature=1.0, form="scaled", constants_at=None
):
    """Cross-entropy; one weight for the whole batch, from its mean Brier score."""
    fixed = logits if constants_at is None else constants_at
    weight = exponential_weight(np.mean(brier(fixed, labels)), temperature, form)
    return weight * cross_entropy(logits, labels)


REFERENCES = {
    "cross_entropy_exp": cross_entropy_exp,
    "focal_exp": focal_exp,
    "dual_focal_exp": dual_focal_exp,
    "brier_exp": brier_exp,
    "cross_entropy_brier_weight": cross_entropy_brier_weight,
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_value_and_gradient(name, temperature):
    checks.check_objective(name, REFERENCES[name], temperature=temperature)


@pytest.mark.parametrize("name", ["brier_exp", "cross_entropy_brier_weight"])
@pytest.mark.parametrize("form", ["scaled", "unscaled", "no_minus", "pure"])
def test_forms(name, form):
    checks.check_objective(name, REFERENCES[name], form=form, temperature=1.5)


def test_options():
    checks.check_objective("focal_exp", focal_exp, gamma=1.0, temperature=2.0)
    checks.check_objective("dual_focal_exp", dual_focal_exp, gamma=2.0, runner_up="wrong")


@pytest.mark.parametrize("form", ["scaled", "unscaled", "no_minus", "pure"])
def test_weight_clips_at_the_temperature(form):
    values = np.array([0.0, 0.5, 1.0, 2.0, 7.0], np.float32)
    np.testing.assert_allclose(
        losses.exponential_weight(jnp.asarray(values), temperature=1.5, form=form),
        exponential_weight(values, 1.5, form),
        rtol=1e-5,
    )
