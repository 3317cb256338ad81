"""Temperature scaling: what T may not change, and the grid."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax import metrics
from calib_jax.calibrators import ensemble_temperature, temperature
from tests.calibrators.members import problem


def test_no_prediction_changes_and_entropy_rises():
    logits, labels = problem()
    params = temperature.fit(logits, labels)
    answer = temperature.apply(params, logits)
    np.testing.assert_array_equal(answer.argmax(-1), logits.argmax(-1))
    apply = lambda t: temperature.apply(params._replace(temperature=jnp.float32(t)), logits)  # noqa: E731
    p = [scipy.special.softmax(np.asarray(apply(t), np.float64), -1) for t in (0.5, 1, 2, 4)]
    entropies = [scipy.special.entr(one).sum(-1) for one in p]
    assert all((np.diff(entropies, axis=0) > 0).all(0))
    np.testing.assert_allclose(jax.nn.softmax(apply(1e7)), 1 / 3, rtol=1e-5)


@pytest.mark.parametrize("calibrator", [temperature, ensemble_temperature])
def test_the_nll_as_measured_never_rises(calibrator):
    apply, nll = jax.jit(calibrator.apply), jax.jit(metrics.nll)
    for seed in range(30):
        random = np.random.default_rng(seed)
        logits = (100 * random.standard_normal((64, 5))).astype(np.float32)
        noise = (0.01, 0.3, 1.0, 3.0, 30.0)[seed % 5]
        labels = np.argmax(logits + noise * random.gumbel(size=logits.shape), axis=-1)
        before = float(nll(logits, labels))
        after = float(nll(apply(calibrator.fit(logits, labels), logits), labels))
        assert after <= before * (1 + 4e-7), seed


@functools.cache
def first_logit(optimum):
    return lambda logits, labels, weights: jnp.abs(logits[0, 0] - optimum)


def test_the_grid_minimises_what_it_is_given():
    logits, labels = np.full((4, 2), 6, np.float32), np.zeros(4, int)
    fit = functools.partial(temperature.fit_grid, logits, labels, criterion=first_logit(4.0))
    assert fit(start=0.5, stop=3.0, step=0.5).temperature == 1.5
    assert fit(start=2.0, stop=3.0, step=0.25).temperature == 2.0
    assert fit(start=2.0, stop=3.0, step=0.25).state.name == "stopped"
    weighted = lambda z, y, w: jnp.abs(jnp.sum(w) * z[0, 0] - 4.0)  # noqa: E731
    actual = temperature.fit_grid(
        logits, labels, np.array([2.0, 0, 0, 0]), stop=4.0, criterion=weighted
    )
    np.testing.assert_allclose(actual.temperature, 3.0, rtol=1e-6)
    never = temperature.fit_grid(logits, labels, criterion=lambda z, y, w: jnp.full((), jnp.nan))
    assert (float(never.temperature), never.state.name) == (1.0, "no_optimum")


def test_a_criterion_is_a_function_to_one_number():
    logits = 2 * np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    labels = np.arange(20) % 3
    with pytest.raises(TypeError, match=r"must be one number, and its value has the shape \(3,\)"):
        temperature.fit_grid(logits, labels, criterion=metrics.per_class_ece)
