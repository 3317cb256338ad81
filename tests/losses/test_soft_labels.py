"""Labels that are distributions over the classes: formulas, bounds, one-hot ones as a case."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import calib_jax
from calib_jax import losses
from tests.selection import first_case, some, some_of

from . import checks

RANDOM = np.random.default_rng(0)
LOGITS = 2 * RANDOM.standard_normal((6, 4))
SOFT = RANDOM.dirichlet(np.full(4, 0.5), size=6)


def log_softmax(z):
    return z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))


def cross_entropy(z, q):
    return -np.sum(q * log_softmax(z), axis=-1)


def label_smoothing(z, q, alpha=0.1):
    return cross_entropy(z, (1 - alpha) * q + alpha / 3 * (1 - q))


def brier(z, q):
    return np.sum((q - np.exp(log_softmax(z))) ** 2, axis=-1)


def focal(z, q, gamma=3.0):
    log_p = log_softmax(z)
    return -np.sum(q * (1 - np.exp(log_p)) ** gamma * log_p, axis=-1)


def generalized_brier(z, q, gamma=3.0, beta=1.5):
    distance = np.abs(q - np.exp(log_softmax(z)))
    return np.sum(distance**beta, axis=-1) ** (gamma / beta) * cross_entropy(z, q)


PAIRS = {
    "cross_entropy": (losses.cross_entropy, cross_entropy),
    "label_smoothing": (functools.partial(losses.label_smoothing, alpha=0.1), label_smoothing),
    "brier": (losses.brier, brier),
    "focal": (losses.focal, focal),
    "generalized_brier": (
        functools.partial(losses.generalized_brier, gamma=3.0, beta=1.5, weighting="loss"),
        generalized_brier,
    ),
}


@functools.cache
def compiled(name):
    """Compile the values of a loss, and the gradient of their sum, for any kind of labels."""

    def run(logits, labels):
        values, pull_back = jax.vjp(lambda z: PAIRS[name][0](z, labels), logits)
        return values, pull_back(jnp.ones_like(values))[0]

    return jax.jit(run)


@pytest.mark.parametrize("name", PAIRS)
def test_value_and_gradient(name, x64):
    actual = compiled(name)(LOGITS, SOFT)
    checks.assert_equal_the_reference(actual, PAIRS[name][1], LOGITS, SOFT, step=1e-5, rtol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_one_hot_labels_are_integer_labels(name, x64):
    labels = np.array([0, 1, 2, 3, 0, 1])
    for logits in (LOGITS, 20 * LOGITS):
        of_hard, of_soft = (compiled(name)(logits, y) for y in (labels, np.eye(4)[labels]))
        for hard, soft in zip(of_hard, of_soft, strict=True):
            np.testing.assert_allclose(soft, hard, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", ["focal", "generalized_brier"])
def test_gradient_weighting_holds_the_weight(function, x64):
    logits, q = jnp.asarray(LOGITS), jnp.asarray(SOFT)
    p = jax.nn.softmax(logits)
    weights = {
        "focal": (1 - p) ** 2,
        "generalized_brier": jnp.sum((q - p) ** 2, axis=-1, keepdims=True),
    }
    weight = weights[function]
    ours = functools.partial(getattr(losses, function), gamma=2.0, weighting="gradient")
    plain = lambda z: -jnp.sum(q * weight * jax.nn.log_softmax(z))  # noqa: E731
    np.testing.assert_allclose(
        jax.grad(lambda z: ours(z, q).sum())(logits), jax.grad(plain)(logits), rtol=1e-9
    )


@pytest.mark.parametrize("weighting", ["loss", "gradient"])
@pytest.mark.parametrize("function", ["focal", "generalized_brier"])
def test_second_derivatives_of_one_hot_labels_are_those_of_integer_labels(function, weighting, x64):
    labels = jnp.asarray([0, 1, 2, 3, 0, 1])
    loss = functools.partial(getattr(losses, function), gamma=3.0, weighting=weighting)
    direction = jnp.asarray(np.random.default_rng(2).standard_normal(LOGITS.shape))

    def second(labels):
        gradient = jax.grad(lambda z: jnp.sum(loss(z, labels)))
        return jax.grad(lambda z: jnp.vdot(gradient(z), direction))(jnp.asarray(LOGITS))

    np.testing.assert_allclose(second(jax.nn.one_hot(labels, 4)), second(labels), rtol=1e-7)


@pytest.mark.parametrize("gamma", [1.0, 2.0, 5.0])
def test_focal_bounds_the_regularised_divergence(gamma, x64):
    """Check focal >= KL(q || p) - gamma H(p), which is why it keeps the entropy up."""
    random = np.random.default_rng(1)
    for scale in (0.1, 1.0, 5.0):
        logits = scale * random.standard_normal((500, 5))
        q = random.dirichlet(np.full(5, 0.3), size=500)
        log_p = log_softmax(logits)
        entropy = -np.sum(np.exp(log_p) * log_p, axis=-1)
        divergence = np.sum(np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0), axis=-1)
        divergence += cross_entropy(logits, q)
        bound = divergence - gamma * entropy
        assert np.all(losses.focal(jnp.asarray(logits), jnp.asarray(q), gamma=gamma) >= bound)


def test_smoothing_over_all_classes_is_that_of_optax(x64):
    labels = jnp.asarray([0, 1, 2, 3, 0, 1])
    smoothed = optax.smooth_labels(jax.nn.one_hot(labels, 4), 0.1)
    expected = optax.softmax_cross_entropy(jnp.asarray(LOGITS), smoothed)
    ours = losses.label_smoothing(jnp.asarray(LOGITS), labels, alpha=0.1, spread="all")
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", PAIRS)
def test_finite_at_the_extremes(name, dtype):
    ours, _ = PAIRS[name]
    rows = [[60.0, 0.01, 0.0], [1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [1e4, -1e4, 0.0]]
    q = jnp.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.2, 0.3]])
    logits = jnp.asarray(rows, dtype)
    has_gamma = name in ("focal", "generalized_brier")
    for options in ({"gamma": 0.5}, {"gamma": 3.0}) if has_gamma else ({},):
        loss = lambda z, options=options: ours(z, q, **options)  # noqa: E731
        terms, gradient = loss(logits), jax.grad(lambda z: jnp.sum(loss(z)))(logits)  # noqa: B023
        assert terms.dtype == jnp.float32
        assert gradient.dtype == logits.dtype
        assert jnp.all(jnp.isfinite(terms)), terms
        assert jnp.all(jnp.isfinite(gradient)), gradient


@pytest.mark.parametrize("name", ["cross_entropy", "brier", "focal", "generalized_brier"])
def test_an_impossible_class_without_weight_is_no_class(name):
    logits, soft = (part.astype(np.float32) for part in (LOGITS, SOFT))
    wider, zero = np.insert(logits, 2, -np.inf, axis=1), np.insert(soft, 2, 0, axis=1)
    values, gradient = compiled(name)(wider, zero)
    expected, plain = compiled(name)(logits, soft)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.delete(gradient, 2, axis=1), plain, rtol=1e-4, atol=1e-6)
    assert not np.any(gradient[:, 2])
    # With weight on it the loss is infinite (Brier's is not), and no gradient is NaN.
    half = np.insert(soft / 2, 2, 0.5, axis=1)
    values, gradient = compiled(name)(wider, half)
    assert np.all(np.isfinite(values)) if name == "brier" else np.all(values == np.inf)
    assert np.all(np.isfinite(gradient))


TAKE_SOFT_LABELS = [
    name for name in losses.__all__ if getattr(getattr(losses, name), "soft_labels", False)
]
every_function = pytest.mark.parametrize("name", TAKE_SOFT_LABELS)


def with_row(row):
    """Return soft labels for LOGITS whose rows 2 and 4 are `row`."""
    soft = np.asarray(SOFT, np.float32)
    soft[[2, 4]] = row
    return soft


@pytest.mark.parametrize("name", some(TAKE_SOFT_LABELS, 3))
def test_integer_labels_of_the_rank_of_the_logits_are_refused(name):
    """Binary logits [n] with labels [n] would be one example of n classes."""
    loss = getattr(losses, name)
    scores, hot = np.float32([2.0, -1.0, 0.5]), np.eye(4, dtype=int)[[0, 1]]
    for right in (np.array([1, 0, 0]), np.array([True, False, False])):  # even if they sum to 1
        for call in (loss, jax.jit(loss)):
            with pytest.raises(TypeError, match=r"calib_jax\.binary\(logits\)\.") as caught:
                call(scores, right)
            assert str(caught.value).startswith(f"{loss.__name__}: logits (3,) need ")
            with pytest.raises(TypeError, match=r"calib_jax\.binary\(logits\[\.\.\., 0\]\)"):
                call(scores[:, None], right[:, None])
    with pytest.raises(TypeError, match=r"labels \(2, 4\) are int.*astype\(float\)\.$"):
        loss(np.zeros((2, 4), np.float32), hot)
    with pytest.raises(TypeError, match=r"labels \(2, 1\) are int.*labels\[\.\.\., 0\]\.$"):
        loss(np.zeros((2, 4), np.float32), np.array([[0], [1]]))
    binary = loss(calib_jax.binary(scores), np.array([1, 0, 0]))
    assert np.all(np.isfinite(binary))


WRONG = {
    "above 1": [0.0, 1.5, -0.5, 0.0],
    "below 0": [0.6, 0.6, 0.0, -0.2],
    "not a number": [1.0, 0.0, np.nan, 0.0],
    "infinite": [1.0, 0.0, np.inf, 0.0],
    "a sum above 1": [1.0, 0.0, 1.0, 0.0],
    "a sum below 1": [0.5, 0.2, 0.2, 0.0],
    "percent": [70.0, 30.0, 0.0, 0.0],
}


@pytest.mark.parametrize(
    ("name", "case"),
    some_of(
        [("cross_entropy", case) for case in WRONG]
        + [(name, case) for name in TAKE_SOFT_LABELS for case in ("above 1", "a sum below 1")],
        len(WRONG),
    ),
)
def test_soft_labels_that_are_no_distribution_make_their_row_nan(name, case):
    logits, wrong = np.asarray(LOGITS, np.float32), with_row(WRONG[case])
    values, gradient = jitted(name)(logits, wrong)
    if np.ndim(values) == 0:  # a penalty of the whole batch
        assert np.isnan(values)
        return
    expected, slopes = jitted(name)(logits, np.asarray(SOFT, np.float32))
    bad = np.array([2, 4])
    assert np.all(np.isnan(values[bad]))
    assert np.all(np.isnan(gradient[bad]))
    np.testing.assert_array_equal(np.delete(values, bad), np.delete(expected, bad))
    np.testing.assert_array_equal(np.delete(gradient, bad, 0), np.delete(slopes, bad, 0))


@functools.cache
def jitted(name):
    """Compile the values of a public function, and the gradient of their sum."""

    def run(logits, labels):
        values, pull_back = jax.vjp(lambda z: getattr(losses, name)(z, labels), logits)
        return values, pull_back(jnp.ones_like(values))[0]

    return jax.jit(run)


@every_function
def test_rows_of_weight_zero_may_have_any_soft_labels(name):
    weights = np.float32([1, 1, 0, 1, 0, 1])
    wrong, logits = with_row([7.0, np.nan, -1.0, np.inf]), np.asarray(LOGITS, np.float32)
    loss = getattr(losses, name)
    objective = losses.as_objective(loss) if not name.endswith("_penalty") else None
    if objective is None:
        of_wrong, of_right = (loss(logits, soft, weights) for soft in (wrong, with_row(SOFT[0])))
    else:
        of_wrong, of_right = (
            objective.value((), logits, soft, weights) for soft in (wrong, with_row(SOFT[0]))
        )
        assert np.isnan(objective.value((), logits, wrong, np.ones(6))[2])
    np.testing.assert_array_equal(of_wrong, of_right)


@first_case
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_soft_labels_may_be_rounded(dtype):
    """Check softmax outputs and printed digits of many classes, eager and compiled."""
    random = np.random.default_rng(5)
    for num_classes in (3, 100, 1000):
        logits = jnp.asarray(random.standard_normal((64, num_classes)), dtype)
        soft = jax.nn.softmax(3 * logits)
        printed = jnp.round(jax.nn.softmax(jnp.asarray(logits, jnp.float32)), 5)
        smoothed = 0.9 * jax.nn.one_hot(jnp.arange(64) % num_classes, num_classes, dtype=dtype)
        for labels in (soft, printed, smoothed + jnp.asarray(0.1 / num_classes, dtype)):
            for loss in (losses.cross_entropy, jax.jit(losses.cross_entropy)):
                assert np.all(np.isfinite(loss(logits, labels)))


def test_soft_iou_takes_rows_of_zeros():
    """A void pixel of weight 1 has no class: only its probability counts, in the union."""
    none = with_row([0.0, 0.0, 0.0, 0.0])
    logits = np.asarray(LOGITS, np.float32)
    p = np.exp(log_softmax(LOGITS))
    union = np.sum(none + p * (1 - none), axis=0)
    expected = 1 - np.mean(np.sum(p * none, axis=0) / union)
    objective = losses.objective("soft_iou")
    for value in (
        losses.soft_iou_penalty(logits, none),
        jax.jit(losses.soft_iou_penalty)(logits, none),
        objective.value((), logits, none)[0],
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert np.isnan(losses.cross_entropy(logits, none)[2])
