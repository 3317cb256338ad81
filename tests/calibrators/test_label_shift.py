"""Another class prior: the estimate by EM, the shifted logits, and what they need to be right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax import calibrators
from calib_jax.calibrators import bias_corrected_temperature
from tests.calibrators.members import mean_nll

SOURCE = np.array([0.5, 0.3, 0.2])
MEANS = 1.2 * np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])


def mixture(prior, num_rows, seed):
    """Draw points of a Gaussian mixture, with the exact logits under the prior SOURCE."""
    random = np.random.default_rng(seed)
    labels = random.choice(3, num_rows, p=prior)
    points = MEANS[labels] + random.standard_normal((num_rows, 2))
    squares = np.sum(np.square(points[:, None] - MEANS), axis=-1)
    return (np.log(SOURCE) - squares / 2).astype(np.float32), labels


@pytest.mark.parametrize("target", [(0.1, 0.2, 0.7), (0.02, 0.9, 0.08), tuple(SOURCE)])
def test_a_simulated_shift_is_recovered(target):
    """Within 3 standard errors of a sample of labels; the NLL is that of the true prior."""
    logits, labels = mixture(target, 4000, seed=1)
    actual = calibrators.estimate_prior(logits, SOURCE)
    assert actual.converged
    assert actual.gain >= 0
    np.testing.assert_allclose(actual.prior, target, atol=3 * np.sqrt(0.25 / 4000) * 1.5)
    answer, ideal = (calibrators.with_prior(logits, SOURCE, q) for q in (actual.prior, target))
    # Two free shares cost about 1 / n.
    assert abs(mean_nll(answer, labels) - mean_nll(ideal, labels)) < 3 / 4000
    if target == tuple(SOURCE):
        assert mean_nll(answer, labels) - mean_nll(logits, labels) < 3 / 4000


def test_em_is_the_maximum_of_the_likelihood(x64):
    """Check against SciPy, with weights, over the simplex."""
    logits, _ = mixture((0.1, 0.2, 0.7), 200, seed=2)
    weights = np.random.default_rng(0).choice([0.0, 1.0, 2.0], 200)
    actual = calibrators.estimate_prior(
        logits.astype(np.float64), SOURCE, weights, tolerance=1e-10, max_iterations=100_000
    )
    ratio = scipy.special.softmax(logits.astype(np.float64), axis=-1) / SOURCE

    def loss(z):
        return -np.average(np.log(ratio @ scipy.special.softmax(z)), weights=weights)

    best = scipy.optimize.minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(actual.prior, scipy.special.softmax(best.x), atol=1e-6)
    np.testing.assert_allclose(actual.gain, -best.fun, atol=1e-9)


def test_a_miscalibrated_model_needs_the_correction():
    """Logits of a wrong slope and bias find a shift where there is none; corrected ones do not."""
    calibrated, labels = mixture(SOURCE, 6000, seed=3)
    logits = 2.5 * calibrated + np.array([0.0, 1.5, 0.0], np.float32)
    params = bias_corrected_temperature.fit(logits[:3000], labels[:3000])
    corrected = bias_corrected_temperature.apply(params, logits[3000:])
    shares = np.bincount(labels[:3000]) / 3000
    before = calibrators.estimate_prior(logits[3000:], shares).prior
    after = calibrators.estimate_prior(corrected, shares).prior
    assert np.max(np.abs(before - SOURCE)) > 0.08
    np.testing.assert_allclose(after, SOURCE, atol=0.05)


def test_it_is_scipys_minimum(x64):
    """Bias-corrected temperature with weights: the parameters and the NLL of BFGS."""
    calibrated, labels = mixture(SOURCE, 300, seed=4)
    logits = 2.5 * calibrated.astype(np.float64) + np.array([0.0, 1.5, -1.0])
    weights = np.random.default_rng(0).choice([0.5, 1.0, 3.0], 300)
    params = bias_corrected_temperature.fit(logits, labels, weights)
    assert params.state.name == "converged"

    def loss(theta):
        return mean_nll(theta[0] * logits + np.append(theta[1:], 0.0), labels, weights)

    best = scipy.optimize.minimize(loss, [1.0, 0.0, 0.0], method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(params.slope, best.x[0], rtol=1e-5)
    np.testing.assert_allclose(
        params.intercept - params.intercept[2], np.append(best.x[1:], 0), atol=1e-4
    )
    np.testing.assert_allclose(params.state.nll_after, best.fun, rtol=1e-10)
    p = jax.nn.softmax(bias_corrected_temperature.apply(params, logits))
    frequency = np.bincount(labels, weights) / weights.sum()
    np.testing.assert_allclose(np.average(p, axis=0, weights=weights), frequency, rtol=1e-6)


def test_shifting_there_and_back_and_to_a_class_that_is_absent():
    logits, _ = mixture(SOURCE, 5, seed=0)
    there = calibrators.with_prior(logits, SOURCE, [10, 20, 70])
    back = calibrators.with_prior(there, [1, 2, 7], SOURCE)
    np.testing.assert_allclose(back, logits, rtol=1e-5, atol=1e-5)
    p = jax.nn.softmax(calibrators.with_prior(logits, SOURCE, [1, 0, 1]))
    assert not np.any(p[:, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda z: calibrators.with_prior(z, [1, 1], [1, 1, 1]),
            "each of the 3 classes, got the shape",
        ),
        (lambda z: calibrators.with_prior(z, [1, 1, 0], [1, 1, 1]), "source_prior must be greater"),
        (lambda z: calibrators.estimate_prior(z, SOURCE, np.zeros(2)), "all 2 weights are 0"),
        (lambda z: calibrators.estimate_prior(z * np.nan, SOURCE), "NaN or infinite logits"),
    ],
)
def test_what_cannot_be_shifted_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.zeros((2, 3)))


def test_nonsense_has_no_prior():
    logits = 2 * np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    even = [1.0, 1.0, 1.0]
    for target in ([0, 0, 0], [1, 1, np.inf]):
        with pytest.raises(ValueError, match="target_prior must have a finite positive sum"):
            calibrators.with_prior(logits, even, target)
    with pytest.raises(ValueError, match="estimate_prior: there are no examples"):
        calibrators.estimate_prior(logits[:0], even)
    with pytest.raises(ValueError, match="estimate_prior: all 20 rows of the logits look like"):
        calibrators.estimate_prior(jax.nn.softmax(logits), even)
    for wrong in (np.nan, -1.0, np.inf):
        weights = np.where(np.arange(20) == 3, wrong, 1.0)
        with pytest.raises(ValueError, match="1 of 20 weights are negative, infinite or NaN"):
            calibrators.estimate_prior(logits, even, weights)


def test_an_absent_example_may_be_nan():
    logits = 2 * np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    weights = np.where(np.arange(20) == 3, 0.0, 1.0)
    expected = calibrators.estimate_prior(logits[weights > 0], [1, 1, 1]).prior
    logits[3] = np.nan
    found = calibrators.estimate_prior(logits, [1, 1, 1], weights).prior
    np.testing.assert_allclose(found, expected, rtol=1e-4)
