"""Fits that minimise a criterion: SciPy finds no lower one, and `apply` is the formula.

Criterion and formula are written here in NumPy, in float64, and share no code with the fits.
"""

import functools

import numpy as np
import pytest
import scipy.optimize
from scipy.special import log_softmax, softmax

from calib_jax import calibrators
from tests import properties as cases
from tests.calibrators import ONES, mean_nll, problem

K = 3
EYE = np.eye(K)
OFF = 1 - EYE


def top(z):
    return z - z.max(axis=1, keepdims=True)


def matrix(x, t):
    return x @ t[:9].reshape(K, K).T + t[9:]


# The scores of calibrated logits, from logits (or features) and all parameters in one array.
SCORES = {
    "bias_corrected_temperature": lambda z, t: t[0] * top(z) + t[1:],
    "vector": lambda z, t: t[:K] * z + t[K:],
    "matrix": matrix,
    "dirichlet": lambda z, t: matrix(log_softmax(z, axis=1), t),
    "svs": lambda x, t: t[:K] * x + t[K:],
    "sms": matrix,
}
# The log-odds of each class against the rest.
ODDS = {
    "platt": lambda yes, no, t: t[:K] * (yes - no) + t[K:],
    "beta": lambda yes, no, t: t[:K] * yes - t[K : 2 * K] * no + t[2 * K :],
}
# Penalties of the options below.
OPTIONS = {
    "vector": {"slope_penalty": 0.1, "intercept_penalty": 0.02},
    "matrix": {"off_diagonal_penalty": 0.1, "intercept_penalty": 0.02},
    "svs": {"slope_penalty": 2.0, "intercept_penalty": 0.1},
    "sms": {"diagonal_penalty": 2.0, "off_diagonal_penalty": 0.5, "intercept_penalty": 0.1},
}
PENALTIES = {
    "vector": lambda t, n: 0.1 * np.mean((t[:K] - 1) ** 2) + 0.02 * np.mean(t[K:] ** 2),
    "matrix": lambda t, n: (
        0.1 * np.sum((OFF.ravel() * t[:9]) ** 2) / 6 + 0.02 * np.mean(t[9:] ** 2)
    ),
    "svs": lambda t, n: K / n * (2 * np.sum((t[:K] - 1) ** 2) + 0.1 * np.sum(t[K:] ** 2)),
    "sms": lambda t, n: (
        K / n * np.sum((2 * EYE + 0.5 * (K - 1) * OFF).ravel() * (t[:9] - EYE.ravel()) ** 2)
        + 0.1 * K / n * np.sum(t[9:] ** 2)
    ),
}
OPTIONS["dirichlet"], PENALTIES["dirichlet"] = OPTIONS["matrix"], PENALTIES["matrix"]


def features(z, params, n):
    p = softmax(z / float(params.temperature), axis=1)
    return np.log(p * n / (n + 1) + 1 / (n + 1) / K)


def scores_of(name, x, theta):
    if name in SCORES:
        return SCORES[name](x, theta)
    yes = log_softmax(x, axis=1)
    no = np.log1p(-np.exp(yes))
    return -np.logaddexp(0, -ODDS[name](yes, no, theta))


@pytest.mark.parametrize(
    ("name", "penalised"),
    [(name, False) for name in ("bias_corrected_temperature", *ODDS)]
    + [(name, True) for name in OPTIONS],
)
def test_scipy_finds_no_lower_criterion(name, penalised, x64):
    logits, labels = problem(200, K, seed=3, dtype=np.float64)
    logits += np.array([1.0, 0.0, -2.0])  # so that there is something to move back
    weights = np.random.default_rng(0).choice([0.0, 1.0, 3.0], 200)
    n = weights.sum()
    options = OPTIONS[name] if penalised else {}
    calibrator = calibrators.named(name)
    params = calibrator.fit(logits, labels, weights, **options)
    assert params.state.name == "converged"
    structured = name in ("svs", "sms")
    x = features(logits, params, n) if structured else logits
    fitted = np.concatenate([np.ravel(part) for part in params[2 * structured : -1]])

    def criterion(theta):
        scores = scores_of(name, x, theta)
        if name in ODDS:  # each question has a likelihood of its own
            answers = np.where(EYE[labels] > 0, scores, np.log1p(-np.exp(scores)))
            return -np.average(np.sum(answers, axis=1), weights=weights)
        penalty = PENALTIES[name](theta, n) if penalised else 0
        return mean_nll(scores, labels, weights) + penalty

    start = 1.1 * fitted + 0.05
    bounds = [(0, None)] * (2 * K) + [(None, None)] * K if name == "beta" else None
    lowest = scipy.optimize.minimize(
        criterion, start, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-13, "gtol": 1e-8}
    )
    assert criterion(fitted) <= lowest.fun + 1e-9
    assert lowest.fun <= criterion(fitted) + 1e-5
    if penalised:  # then the optimum is unique
        np.testing.assert_allclose(fitted, lowest.x, rtol=0.02, atol=5e-3)
    p = softmax(scores_of(name, x, fitted), axis=1)
    np.testing.assert_allclose(softmax(calibrator.apply(params, logits), axis=1), p, rtol=1e-8)


@pytest.mark.parametrize(
    ("exponent", "seeds"),
    [(1, (5, 25, 39, 82, 110)), (2, (25,)), (3, (19, 25, 39, 44, 82, 84, 110))],
)
def test_vector_scaling_of_logits_of_any_size_reaches_its_minimum(exponent, seeds):
    """Some start at an NLL of thousands, and end in a valley with hardly any curvature."""
    for seed in seeds:
        batch = cases.build((20, K), seed, "one large", exponent, 0.0, 0.3, False, "int8")
        z, labels, weights = batch.rows(batch.weights > 0)
        x = z.astype(np.float64)
        x = (x - x.mean(axis=0)) / x.std(axis=0)  # BFGS needs parameters of one scale
        loss = lambda t, data: mean_nll(SCORES["vector"](data[0], t), *data[1:])  # noqa: E731
        start = np.repeat([1.0, 0.0], K)
        lowest = scipy.optimize.minimize(loss, start, args=((x, labels, weights),), method="BFGS")
        params = calibrators.vector.fit(*batch)
        assert params.state.name == "converged", (seed, params.state)
        np.testing.assert_allclose(params.state.nll_after, lowest.fun, rtol=2e-3)


@pytest.mark.parametrize("name", ["vector", "matrix"])
def test_probabilities_of_0_and_1_do_not_end_a_linear_fit(name):
    """They leave no curvature, and a step uphill promised less than nothing, so that it ended."""
    fit = calibrators.named(name).fit
    for seed in (4, 17, 47):
        random = np.random.default_rng(seed)
        logits = random.integers(-3, 4, (20, 3)).astype(np.float32)
        labels = np.where(random.random(20) < 0.5, logits.argmax(1), random.integers(0, 3, 20))
        best, saturated = (fit(factor * logits, labels).state for factor in (np.float32(1), 20))
        assert best.name == saturated.name == "converged"
        np.testing.assert_allclose(saturated.nll_after, best.nll_after, rtol=1e-4)


def test_a_constant_logit_leaves_linear_fits_their_minimum():
    for num_classes in (2, 3):
        logits, labels = problem(80, num_classes, seed=4)
        logits[:, 0] = 0  # the form of `calib_jax.binary`
        params = calibrators.vector.fit(logits, labels, ONES)
        assert params.state.name == "converged"  # nor is it separable
        penalty = 0.1 if num_classes == 3 else 0.0
        penalties = dict(off_diagonal_penalty=penalty, intercept_penalty=penalty)
        params = calibrators.matrix.fit(logits, labels, ONES, **penalties)
        assert params.state.name == "converged"


@pytest.mark.parametrize("exponent", [1, 3])
@pytest.mark.parametrize(("kind", "seeds"), [("vector", (25,)), ("platt", (37, 82, 104))])
def test_no_order_of_examples_and_classes_stops_a_fit(kind, seeds, exponent):
    """Rounding differs with the order, and may end a fit on its way."""
    fit = calibrators.named(kind).fit
    for seed in seeds:
        batch = cases.build((20, K), seed, "one large", exponent, 0.0, 0.3, False, "int8")
        names, lowest = set(), []
        for order in range(12):
            rng = np.random.default_rng(order)
            rows, classes = batch.rows(rng.permutation(20)), rng.permutation(K)
            labels = np.argsort(classes)[np.clip(rows.labels, 0, K - 1)]
            labels = np.where(rows.labels >= 0, labels, rows.labels)
            state = fit(rows.logits[:, classes], labels, rows.weights).state
            names.add(state.name)
            lowest.append(float(state.nll_after))
        assert names in ({"converged"}, {"no_optimum"}), (seed, names)
        if names == {"converged"}:
            assert max(lowest) <= 1.002 * min(lowest)


@pytest.mark.parametrize("kind", ["vector", "matrix"])
def test_the_state_says_why_a_linear_fit_ended(kind):
    """A class that never occurs, a class that a line tells apart, or too few iterations."""
    logits, labels = problem()
    light = np.where(labels == 2, 1.0, 3.0)  # a class may occur in light rows alone
    assert calibrators.named(kind).fit(logits, labels, light).state.name == "converged"
    fit = functools.partial(calibrators.named(kind).fit, weights=ONES)
    missing = np.minimum(labels, 1)
    assert fit(logits, missing).state.name == "no_optimum"
    assert fit(logits, missing, **OPTIONS[kind]).state.name == "converged"
    random = np.random.default_rng(0)
    apart = random.standard_normal((80, 3)).astype(np.float32)
    apart[:, 2] = np.where(np.arange(80) % 3 == 2, 8, -8) + 0.1 * apart[:, 2]
    params = fit(apart, np.arange(80) % 3)
    assert params.state.name == "no_optimum"
    assert np.isfinite(params[0]).all()
    flat = fit(np.full((80, 3), 3, np.float32), labels)
    assert flat.state.name == "indistinct"
    assert np.max(np.abs(flat[0])) <= 1  # no slope can be fitted
    if kind == "vector":  # a class that is impossible in some rows stays so
        impossible = (np.arange(80) % 5 == 0) & (labels != 2)
        some = np.where(impossible[:, None] & (np.arange(3) == 2), -np.inf, logits)
        params = fit(some, labels)
        assert params.state.name == "converged"
        scores = np.asarray(params.slope) * some + np.asarray(params.intercept)
        np.testing.assert_allclose(params.state.nll_after, mean_nll(scores, labels), rtol=1e-5)
        never = np.where(np.arange(3) == 2, -np.inf, logits)  # in every row
        assert fit(never, labels % 2).state.name == "converged"
    state = fit(logits, labels, max_iterations=6).state
    assert state.name == "stopped"
    assert state.nll_after < state.nll_before
    for option, value in (("intercept_penalty", -1), ("max_iterations", 0)):
        with pytest.raises(ValueError, match=f"{option} must be at least ., got {value}"):
            fit(logits, labels, **{option: value})


def test_a_linear_fit_is_the_equivalent_one_nearest_to_the_identity():
    """Adding a vector to all rows of W, or a number to b, changes no probability."""
    weights, intercepts, state = calibrators.matrix.fit(*problem(), ONES)
    assert state.name == "converged"
    np.testing.assert_allclose(np.mean(weights - np.eye(3), axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(np.mean(intercepts), 0, atol=1e-5)


# The mean NLL after SVSCalibrator and SMSCalibrator of probmetrics 1.3.0, with their defaults.
RECORDED = {"svs": 0.747329, "sms": 0.718283}


@pytest.mark.parametrize("name", RECORDED)
def test_structured_scaling_reaches_the_nll_of_probmetrics(name, x64):
    random = np.random.default_rng(0)
    z = random.standard_normal((200, K)).astype(np.float32) * 1.5
    z += np.float32(np.log(K)) * EYE[random.integers(K, size=200)].astype(np.float32)
    shift = 0.5 * random.standard_normal(K).astype(np.float32)
    slope = (1 + 0.3 * random.standard_normal(K)).astype(np.float32)
    labels = np.argmax(slope * z + shift + random.gumbel(size=z.shape), axis=1)
    logits = (z * np.float32(1.8)).astype(float)
    params = calibrators.named(name).fit(logits, labels, np.ones(200))
    assert params.state.name == "converged"
    reached = mean_nll(calibrators.named(name).apply(params, logits), labels)
    np.testing.assert_allclose(reached, RECORDED[name], atol=1e-4)
    if name == "svs":  # each class has a slope of its own, so an impossible one stays so
        some = np.where(np.arange(K) == 2, -np.inf, logits)
        p = softmax(calibrators.svs.apply(params, some), axis=1)
        assert np.isfinite(p).all()
        assert not p[:, 2].any()


def test_the_penalties_of_structured_scaling_follow_the_number_of_classes():
    """The criterion has no slope at the fit of four classes."""
    logits, labels = problem(80, 4, dtype=np.float64)
    params = calibrators.sms.fit(logits, labels, ONES)
    matrix, intercept = np.asarray(params.matrix), np.asarray(params.intercept)
    p = softmax(logits / float(params.temperature), axis=1)
    x = np.log(80 / 81 * p + 1 / 81 / 4)
    residual = softmax(x @ matrix.T + intercept, axis=1) - np.eye(4)[labels]
    pull = np.where(np.eye(4) > 0, matrix - 1, 3 * matrix)
    np.testing.assert_allclose(residual.T @ x / 80 + 2 * 4 / 80 * pull, 0, atol=1e-4)
    np.testing.assert_allclose(residual.mean(0) + 2 * 4 / 80 * intercept, 0, atol=1e-4)


@pytest.mark.parametrize(
    ("scores", "labels", "state"),
    [
        ([1, 2, 3, 4], [0, 1, 0, 1], "converged"),
        ([-3, -1, 1, 3], [0, 1, 0, 1], "converged"),
        ([1, 2, 3, 4], [0, 0, 1, 1], "no_optimum"),
        ([1, 2, 3, 4], [1, 1, 0, 0], "no_optimum"),
        ([1, 2, 2, 3], [0, 0, 1, 1], "no_optimum"),  # a tie at the threshold: steeper still helps
        ([1, 2, 3, 4], [1, 1, 1, 1], "no_optimum"),
        ([2, 2, 2, 2], [0, 1, 1, 1], "indistinct"),
        ([2, 2, 2, 2], [1, 1, 1, 1], "no_optimum"),
    ],
)
def test_the_state_says_whether_a_logistic_curve_has_an_optimum(scores, labels, state):
    copies = np.repeat(np.arange(4), [3, 2, 2, 2])
    scores, labels = np.array(scores)[copies], np.array(labels)[copies]
    logits = np.stack([0 * scores, scores], axis=1).astype(np.float32)
    params = calibrators.platt.fit(logits, labels)
    assert params.state.name == state
    assert np.isfinite(calibrators.platt.apply(params, logits)).all()
    smooth = calibrators.platt.fit(logits, labels, smoothed=True)
    assert smooth.state.name == ("indistinct" if state == "indistinct" else "converged")
    p = softmax(calibrators.platt.apply(params, logits), axis=1)[:, 1]
    if state == "indistinct":
        np.testing.assert_allclose(p, 6 / 9, rtol=1e-5)
    if state == "converged":  # where the NLL has no slope
        np.testing.assert_allclose([np.sum(p - labels), (p - labels) @ scores], 0, atol=1e-3)
    # A curve that may only rise has an optimum where Platt's falls: the base rate.
    falls = labels[0] > labels[-1]
    assert calibrators.beta.fit(logits, labels).state.name == ("converged" if falls else state)


def test_smoothed_targets_are_platts():
    logits = np.float32([[0, 1]] * 6 + [[0, -1]] * 3)
    params = calibrators.platt.fit(logits, np.array([1, 1, 1, 1, 0, 0, 0, 0, 0]), smoothed=True)
    p = softmax(calibrators.platt.apply(params, logits), axis=1)[:, 1]
    yes, no = (4 + 1) / (4 + 2), 1 / (5 + 2)
    np.testing.assert_allclose(p[[0, 8]], [(4 * yes + 2 * no) / 6, no], rtol=1e-4)
