"""The view of the probabilities: every field against float64, at any logits, and its gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from calib_jax.core.probabilities import cross_entropy_and_top_label, prepare
from calib_jax.metrics import Predictions

PER_EXAMPLE = (
    *("log_true", "log_rest", "log_others", "share_squares", "share_entropy"),
    *("true", "rest", "log_total"),
)
PER_CLASS = ("share", "others", "log_share")
FIELDS = (*PER_EXAMPLE, *PER_CLASS)


def reference(logits, labels, offset=None):
    """Return every field for logits [N, K] and labels [N], one row at a time, in long double.

    The logits are measured from `offset` [N], the largest of each row.
    """
    rows = []
    offset = np.max(logits, axis=-1) if offset is None else offset
    shifted = np.asarray(logits, np.longdouble) - np.asarray(offset, np.longdouble)[:, None]
    for z, y in zip(shifted, labels, strict=True):
        other = np.delete(z, y)
        top = other.max()
        log_others = top + np.log(np.exp(other - top).sum())
        margin = z[y] - log_others
        log_true, log_rest = -np.logaddexp(0, -margin), -np.logaddexp(0, margin)
        log_share = np.insert(other - log_others, y, -np.inf)
        share = np.exp(log_share)
        rows.append(
            {
                "log_true": log_true,
                "log_rest": log_rest,
                "log_others": log_others,
                "share": share,
                "share_squares": (share**2).sum(),
                "share_entropy": -(np.delete(share, y) * (other - log_others)).sum(),
                "true": np.exp(log_true),
                "rest": np.exp(log_rest),
                "others": share * np.exp(log_rest),
                "log_share": log_share,
                "log_total": np.logaddexp(z[y], log_others),
            }
        )
    return {name: np.stack([row[name] for row in rows]).astype(np.float64) for name in rows[0]}


def rows_to_look_at(dtype, num_classes=5):
    """Return random rows of all scales, and rows with one class far ahead or far behind."""
    random = np.random.default_rng(0)
    scales = np.repeat([0.01, 1.0, 5.0, 15.0], 10)[:, None]
    logits = scales * random.standard_normal((40, num_classes))
    noise = 0.01 * random.standard_normal((12, num_classes))
    lead = np.asarray([18.0, 30.0, 60.0, 80.0, -18.0, -60.0, -500.0, -1e4, 5.0, 0.0, 1.0, -1.0])
    labels = random.integers(num_classes, size=52)
    noise[np.arange(12), labels[40:]] += lead
    far = logits[:10] + 1e3  # the common offset is nothing but an offset
    logits = np.concatenate([logits, noise, far]).astype(dtype)
    return logits, np.concatenate([labels, labels[:10]])


def allowed_error(name, expected, logits, rest, dtype):
    """Return what rounding of the logits alone does to a field, times a few.

    It is an absolute error of a logarithm or an entropy, so a relative one of a probability; and
    log p_y and log(1 - p_y) have a relative one where they are nearly 0. The squares of the shares
    may be anything in [0, 1] where the squares of the probabilities underflow.
    """
    info = np.finfo(dtype)
    rounding = 8 * info.eps * (1 + np.abs(logits).max(axis=-1))
    if expected.ndim == 2:
        rounding = rounding[:, None]
    if name == "share_squares":
        return np.where(rest < np.sqrt(info.tiny / info.eps), 1, rounding)
    if name in ("log_true", "log_rest"):
        return rounding * np.minimum(np.abs(expected), 1)
    is_absolute = name.startswith("log_") or name == "share_entropy"
    return rounding * (1 if is_absolute else np.abs(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_classes", [2, 5, 100])
def test_every_field(dtype, num_classes, x64):
    logits, labels = rows_to_look_at(dtype, num_classes)
    expected = reference(logits, labels)
    fields = jax.jit(lambda z, y: {name: getattr(prepare(z, y), name) for name in FIELDS})
    for name, actual in fields(jnp.asarray(logits), jnp.asarray(labels)).items():
        assert actual.dtype == dtype, name
        actual, want = np.asarray(actual, np.float64), expected[name]
        np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(want), err_msg=name)
        actual, want = np.where(np.isneginf(want), 0, [actual, want])
        allowed = allowed_error(name, want, logits, expected["rest"], dtype)
        allowed = allowed + 100 * np.finfo(dtype).tiny
        wrong = np.argwhere(~(np.abs(actual - want) <= allowed))
        assert not len(wrong), (name, wrong, actual[tuple(wrong[0])], want[tuple(wrong[0])])


def test_beyond_what_a_float_can_say():
    """Check that 1 - p_y ends at the smallest normal number: finite logarithm, finite gradient."""
    logits = jnp.asarray([[lead, 0.0, 0.5] for lead in (80.0, 90.0, 200.0, 1e4)])
    labels = jnp.zeros(4, int)

    def everything(logits):
        view = prepare(logits, labels)
        return {name: getattr(view, name) for name in FIELDS if name != "log_share"}

    fields = jax.jit(everything)(logits)
    for name, actual in fields.items():
        assert np.isfinite(actual).all(), name
    assert np.all(fields["log_rest"] < -79)
    np.testing.assert_array_equal(fields["true"], np.ones(4))
    assert np.all(fields["rest"] <= 1e-34)
    assert prepare(logits, labels.at[0].set(2)).correct.tolist() == [False, True, True, True]
    total = jax.grad(lambda z: sum(jnp.sum(field) for field in everything(z).values()))
    assert np.isfinite(jax.jit(total)(logits)).all()


def numerical_gradients(function, logits, step=1e-5):
    """Return central differences of a function of logits that gives a number for each name."""
    gradients = {name: np.zeros_like(logits) for name in function(logits)}
    for index in np.ndindex(*logits.shape):
        shift = np.zeros_like(logits)
        shift[index] = step
        above, below = function(logits + shift), function(logits - shift)
        for name, gradient in gradients.items():
            gradient[index] = (above[name] - below[name]) / (2 * step)
    return gradients


@pytest.mark.parametrize("num_classes", [2, 5])
def test_gradient_of_every_field(num_classes, x64):
    random = np.random.default_rng(1)
    logits = 2 * random.standard_normal((6, num_classes))
    labels = random.integers(num_classes, size=6)
    offset = logits.max(axis=-1)
    cotangents = {
        name: np.where(np.isinf(field), 0, random.standard_normal(field.shape))
        for name, field in reference(logits, labels).items()
    }

    def of_the_reference(logits):
        fields = reference(logits, labels, offset)  # the offset is a constant for gradients
        return {
            name: np.sum(cotangents[name] * np.where(np.isinf(field), 0, field))
            for name, field in fields.items()
        }

    def of_the_view(logits, name):
        field = getattr(prepare(logits, jnp.asarray(labels)), name)
        return jnp.sum(cotangents[name] * jnp.where(jnp.isinf(field), 0, field))

    gradients = jax.jit(lambda z: {name: jax.grad(of_the_view)(z, name) for name in FIELDS})
    expected = numerical_gradients(of_the_reference, logits)
    for name, actual in gradients(jnp.asarray(logits)).items():
        np.testing.assert_allclose(actual, expected[name], rtol=1e-7, atol=1e-8, err_msg=name)


# --------------------------------------------------------------------------------------------
# The top label: one formula, whatever the label, the program or the other rows.

CONFIDENCES = {
    "top_label": lambda z, y: cross_entropy_and_top_label(z, y).confidence,
    "Predictions": lambda z, y: Predictions(z, y).confidence,
    "Probabilities": lambda z, y: prepare(z, y).confidence,
    "adafocal": lambda z, y: evidence("adafocal", z, y)["confidence"],
}


def evidence(name, logits, labels):
    objective = losses.objective(name)
    return objective.evidence(objective.init(logits.shape[-1]), logits, labels)


def beside_other_work(confidence):
    """Compute it in a program with other sums of the same rows, which a compiler may fuse."""

    def run(logits, labels):
        terms = losses.focal(logits, labels) + losses.cross_entropy(logits, labels)
        slope = jax.grad(lambda z: jnp.sum(losses.brier(z, labels)))(logits)
        return confidence(logits, labels), terms, slope

    return lambda logits, labels: jax.jit(run)(logits, labels)[0]


@pytest.mark.parametrize("name", CONFIDENCES)
def test_equal_rows_have_equal_confidences_whatever_their_labels(name):
    random = np.random.default_rng(0)
    confidence = CONFIDENCES[name]
    compiled = (jax.jit(confidence), beside_other_work(confidence))
    for num_rows, num_classes, dtype, ways in (
        (103, 2, "float32", (confidence, *compiled)),
        (65, 10, "float16", compiled),
    ):
        logits = jnp.asarray(2 * random.standard_normal((5, num_classes)), dtype)
        row = random.integers(5, size=num_rows)
        labels = jnp.asarray(random.integers(num_classes, size=num_rows))
        bits = []
        for way in ways:
            values = np.asarray(way(logits[row], labels))
            assert values.dtype == np.float32
            bits.append([set(values[row == number]) for number in range(5)])
            assert [len(different) for different in bits[-1]] == [1] * 5
        assert all(each == bits[0] for each in bits)


def test_the_gradient_is_exact_where_the_confidence_is_almost_one():
    """The gradient of c is c (1 - c) at the top, which a difference would round to 0."""
    logits = jnp.asarray([[30.0, 0.0, -1.0], [60.0, 0.0, 1.0], [0.5, 0.0, 0.0], [1.0, 1.0, 1.0]])
    labels = jnp.zeros(4, int)
    gradient = jax.jit(jax.grad(lambda z: jnp.sum(prepare(z, labels).confidence)))(logits)
    z = np.asarray(logits, np.float64)
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    expected = -p * p[:, :1]
    expected[:, 0] = p[:, 0] * p[:, 1:].sum(-1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_gradients_are_those_of_the_formulas(x64):
    random = np.random.default_rng(0)
    logits, factors = random.normal(size=(2, 6, 4))
    logits = jnp.asarray(logits)
    labels = jnp.array([0, 1, 2, 3, *logits[4:].argmax(axis=1)])

    def ours(z):
        found = cross_entropy_and_top_label(z, labels)
        return found.loss, found.confidence, found.gaps

    def plain(z):
        log_p = jax.nn.log_softmax(z)
        loss = -log_p[jnp.arange(6), labels]
        return loss, jnp.exp(jnp.max(log_p, axis=1)), jnp.max(z, axis=1, keepdims=True) - z

    @functools.partial(jax.jit, static_argnums=0)
    def pulled(function, *cotangents):
        values, pull = jax.vjp(function, logits)
        return values, pull(cotangents)[0]

    for given in (factors, 0 * factors):
        (values, slope), (expected, wanted) = (
            pulled(one, factors[:, 0], factors[:, 1], given) for one in (ours, plain)
        )
        np.testing.assert_allclose(slope, wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(np.hstack([*values[:2]]), np.hstack([*expected[:2]]), rtol=1e-12)
    np.testing.assert_allclose(values[2], expected[2], atol=1e-12)
