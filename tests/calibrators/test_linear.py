"""Vector, matrix and Dirichlet scaling against SciPy's minimum, penalties included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax import calibrators
from tests.calibrators.members import problem
from tests.properties import cases

K = 3
KINDS = ["vector", "matrix", "dirichlet"]
FIRST = dict.fromkeys(KINDS, "off_diagonal_penalty") | {"vector": "slope_penalty"}


def features(kind, logits):
    return scipy.special.log_softmax(logits, axis=-1) if kind == "dirichlet" else logits


def scipy_fit(kind, logits, labels, weights, first, second):
    """Minimise NLL + penalties by BFGS; return the value and the probabilities."""
    x, share = features(kind, logits), weights / weights.sum()
    one_hot = np.eye(K)[labels]
    off = ~np.eye(K, dtype=bool)

    def unpack(theta):
        if kind == "vector":
            return np.diag(theta[:K]), theta[K:]
        return theta[: K * K].reshape(K, K), theta[K * K :]

    def loss(theta):
        w, b = unpack(theta)
        z = x @ w.T + b
        residual = share[:, None] * (scipy.special.softmax(z, axis=-1) - one_hot)
        value = -share @ np.sum(one_hot * scipy.special.log_softmax(z, axis=-1), axis=-1)
        slope_w, slope_b = residual.T @ x, residual.sum(0)
        value += second * np.mean(b**2)
        slope_b += second * 2 * b / K
        if kind == "vector":
            value += first * np.mean((np.diag(w) - 1) ** 2)
            slope = np.diag(slope_w) + first * 2 * (np.diag(w) - 1) / K
        else:
            value += first * np.sum(w[off] ** 2) / (K * (K - 1))
            slope = (slope_w + first * 2 * np.where(off, w, 0) / (K * (K - 1))).ravel()
        return value, np.concatenate([slope, slope_b])

    start = np.ones(K) if kind == "vector" else np.eye(K).ravel()
    start = np.concatenate([start, np.zeros(K)])
    minimum = scipy.optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    w, b = unpack(minimum.x)
    return loss, minimum.fun, scipy.special.softmax(x @ w.T + b, axis=-1)


@pytest.mark.parametrize("penalties", [(0.0, 0.0), (0.1, 0.01)])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_scipys_minimum(kind, penalties, x64):
    logits, labels = problem(200, K, seed=3, dtype=np.float64)
    logits += np.array([1.0, 0.0, -2.0])  # so that there is something to move back
    weights = np.random.default_rng(0).choice([0.5, 1.0, 3.0], 200)
    names = (FIRST[kind], "intercept_penalty")
    calibrator = calibrators.named(kind)
    params = calibrator.fit(logits, labels, weights, **dict(zip(names, penalties, strict=True)))
    assert params.state.name == "converged"
    loss, lowest, p = scipy_fit(kind, logits, labels, weights, *penalties)
    actual = jax.nn.softmax(calibrator.apply(params, logits))
    np.testing.assert_allclose(actual, p, rtol=2e-6)
    theta = np.concatenate([np.ravel(params[0]), params.intercept])
    np.testing.assert_allclose(loss(theta)[0], lowest, rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed", "exponent", "absent"),
    [
        ("vector", 1119403792, 2, 0.3),
        ("matrix", 2007374715, 2, 0.3),
        ("dirichlet", 922267228, 1, 0),
    ],
)
def test_converged_in_single_precision_is_the_minimum(kind, seed, exponent, absent):
    """Also where rounding ends a line search, in one order of rows at an NLL of 1.1 for .33."""
    batch = cases.build((20, K), seed, "one large", exponent, 0.0, absent, False, "int8")
    order = np.random.default_rng(0).permutation(20)
    present = batch.weights > 0
    rows = batch.rows(present)
    x = features(kind, rows.logits.astype(np.float64))
    x -= x.mean(axis=0)  # BFGS, too, needs parameters of one scale
    _, lowest, _ = scipy_fit(
        "matrix" if kind == "dirichlet" else kind,
        x / x.std(axis=0),
        rows.labels,
        rows.weights,
        0,
        0,
    )
    fit = calibrators.named(kind).fit
    states = [fit(*batch.rows(rows)).state for rows in (slice(None), order)]
    converged = [state for state in states if state.name == "converged"]
    assert converged
    for state in converged:
        np.testing.assert_allclose(state.nll_after, lowest, rtol=2e-3)


@pytest.mark.parametrize(
    ("exponent", "seeds"),
    [(1, (5, 25, 39, 82, 110)), (2, (25,)), (3, (19, 25, 39, 44, 82, 84, 110))],
)
def test_vector_scaling_of_logits_of_any_size_reaches_its_minimum(exponent, seeds):
    """Some start at an NLL of thousands, and end in a valley with hardly any curvature."""
    for seed in seeds:
        batch = cases.build((20, K), seed, "one large", exponent, 0.0, 0.3, False, "int8")
        rows = batch.rows(batch.weights > 0)
        x = rows.logits.astype(np.float64)
        x = (x - x.mean(axis=0)) / x.std(axis=0)  # BFGS, too, needs parameters of one scale
        _, lowest, _ = scipy_fit("vector", x, rows.labels, rows.weights, 0, 0)
        params = calibrators.vector.fit(*batch)
        assert params.state.name == "converged", (seed, params.state)
        np.testing.assert_allclose(params.state.nll_after, lowest, rtol=2e-3)


@pytest.mark.parametrize("exponent", [1, 3])
@pytest.mark.parametrize(("kind", "seeds"), [("vector", (25,)), ("platt", (37, 45, 82, 95, 104))])
def test_no_order_of_examples_and_classes_stops_a_fit(kind, seeds, exponent):
    """Rounding differs with the order, and ended a fifth to most of these fits on their way."""
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


@pytest.mark.slow
def test_two_vector_scalings_of_one_kind():
    """With two classes, vector scaling of [0, z] is Platt scaling of z."""
    logits, labels = problem(200, 2, seed=4)
    logits[:, 0] = 0
    answers = [
        jax.nn.softmax(calibrators.named(kind).apply(params, logits))
        for kind in ("vector", "platt")
        for params in [calibrators.named(kind).fit(logits, labels)]
    ]
    np.testing.assert_allclose(*answers, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_dirichlet_does_not_mind_shifted_rows():
    logits, labels = problem()
    shifted = logits + np.linspace(-5, 5, 80, dtype=np.float32)[:, None]
    fit, apply = calibrators.dirichlet.fit, calibrators.dirichlet.apply
    answers = [jax.nn.softmax(apply(fit(z, labels), z)) for z in (logits, shifted)]
    np.testing.assert_allclose(*answers, rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_strong_penalties_leave_what_is_not_penalised(kind):
    logits, labels = problem()
    params = calibrators.named(kind).fit(
        logits, labels, **{FIRST[kind]: 1e4, "intercept_penalty": 1e4}
    )
    assert params.state.name == "converged"
    weights = np.asarray(params[0])
    expected = np.ones(K) if kind == "vector" else np.diag(np.diag(weights))
    np.testing.assert_allclose(weights, expected, atol=1e-3)
    np.testing.assert_allclose(params.intercept, 0, atol=1e-3)
    if kind != "vector":
        assert (np.diag(weights) < 0.8).all()  # the diagonal was free to cool the logits


@pytest.mark.parametrize("kind", KINDS)
def test_penalties_make_an_optimum_where_a_class_is_missing(kind):
    logits, labels = problem()
    labels = np.minimum(labels, 1)
    fit = calibrators.named(kind).fit
    assert fit(logits, labels).state.name == "no_optimum"
    assert (
        fit(logits, labels, **{FIRST[kind]: 0.1, "intercept_penalty": 0.1}).state.name
        == "converged"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_iterations_that_run_out_are_said(kind):
    logits, labels = problem()
    params = calibrators.named(kind).fit(logits, labels, max_iterations=2)
    assert params.state.name == "stopped"
    assert params.state.nll_after < params.state.nll_before


@pytest.mark.parametrize("kind", KINDS)
def test_a_minimum_at_infinity_is_no_optimum(kind):
    """A class that a line tells apart, while the others overlap: part of W grows for ever."""
    random = np.random.default_rng(0)
    labels = np.arange(80) % 3
    logits = random.standard_normal((80, 3)).astype(np.float32)
    logits[:, 2] = np.where(labels == 2, 8, -8) + 0.1 * logits[:, 2]
    params = calibrators.named(kind).fit(logits, labels)
    assert params.state.name == "no_optimum"
    assert np.isfinite(params[0]).all()


@pytest.mark.slow
def test_more_parameters_than_examples():
    """The digits of float32 run out on the way: the answer is still that of float64."""
    random = np.random.default_rng(0)
    logits = 2 * random.standard_normal((200, 60))
    labels = random.integers(60, size=200)

    def objective(dtype):
        params = calibrators.matrix.fit(
            jnp.asarray(logits, dtype), labels, off_diagonal_penalty=1.0, intercept_penalty=1.0
        )
        assert params.state.name == "converged"
        w, b = (np.asarray(leaf, np.float64) for leaf in params[:2])
        off = np.sum(w**2) - np.sum(np.diag(w) ** 2)
        return params.state.nll_after + off / (60 * 59) + np.mean(b**2)

    with jax.enable_x64(True):
        expected = objective(np.float64)
    np.testing.assert_allclose(objective(np.float32), expected, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_penalty_below_0_is_refused(kind):
    with pytest.raises(ValueError, match="intercept_penalty must be at least 0, got -1"):
        calibrators.named(kind).fit(*problem(), intercept_penalty=-1)
