"""The delicate numerics, at the ends where plain formulas lose their digits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.core import numerics


@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0, 2.5, 20.0])
def test_power_is_the_power(exponent, x64):
    base = np.geomspace(1e-12, 2, 40)
    actual = numerics.power(jnp.log(base), exponent)
    np.testing.assert_allclose(actual, base.astype(np.longdouble) ** exponent, rtol=1e-13)


def test_a_power_of_two_divides_exactly_to_about_1():
    values = np.geomspace(1e-30, 1e30, 61, dtype=np.float32)
    power = np.asarray(numerics.power_of_two(jnp.asarray(values)), np.float64)
    np.testing.assert_array_equal(np.log2(power), np.floor(np.log2(values.astype(np.float64))))
    actual = numerics.power_of_two(jnp.float32([0, 1, 3, 3e38]))
    np.testing.assert_array_equal(actual, [1, 1, 2, 2.0**126])  # 2^-127 would be flushed to 0


def test_zero_times_infinity_is_zero():
    weights, losses = jnp.float32([0, 2, 2, 0]), jnp.float32([jnp.inf, jnp.inf, 3, 3])
    np.testing.assert_array_equal(numerics.times(weights, losses), [0, np.inf, 6, 0])
    slopes = jax.grad(lambda *of: jnp.sum(numerics.times(*of)[2:]), argnums=(0, 1))
    np.testing.assert_array_equal(slopes(weights, losses), [[0, 0, 3, 3], [0, 0, 2, 0]])


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e13])
@pytest.mark.parametrize("temperature", [0.3, np.array([0.3, 2, 7])])
def test_tempered_logits_are_differences_from_the_largest_of_their_row(scale, temperature):
    logits = (scale * np.random.default_rng(0).standard_normal((3, 4))).astype(np.float32)
    actual = jax.jit(numerics.tempered)(logits, jnp.asarray(temperature, jnp.float32))
    below = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    np.testing.assert_allclose(actual, below / np.reshape(temperature, (-1, 1)), rtol=3e-7)
    assert np.all(np.max(actual, axis=-1) == 0)


first_argmax, argsort = jax.jit(numerics.first_argmax), jax.jit(numerics.argsort)
log_probabilities = jax.jit(numerics.log_probabilities)


@pytest.mark.parametrize("kind", ["random", "tied", "equal"])
@pytest.mark.parametrize("num_classes", [1, 2, 7, 100])
def test_first_argmax_is_numpys(kind, num_classes):
    random = np.random.default_rng(0)
    rows = {
        "random": random.standard_normal((3, 40, num_classes)),
        "tied": random.integers(3, size=(3, 40, num_classes)),
        "equal": np.zeros((3, 40, num_classes)),
    }[kind].astype(np.float32)
    if kind == "equal":  # an entry that is too close for a minimum of floats to tell
        rows[0, 0, -1], rows[0, 0, :-1] = 0, -1e-37
    np.testing.assert_array_equal(first_argmax(rows), rows.argmax(-1))


@pytest.mark.parametrize("size", [1, 2, 300, 2**17])  # one pass of the sort, two and three
def test_argsort_is_numpys(size):
    draw = np.random.default_rng(size)
    values = np.round(draw.normal(size=(2, size)), 2).astype(np.float32)  # with ties
    values[:, 1::7] = draw.choice([np.nan, np.inf, -np.inf, -0.0, 0.0], values[:, 1::7].shape)
    if size == 2:  # values next to each other, and of all signs
        values = np.float32([[2, np.nextafter(np.float32(2), 1)], [1, -1]])
    expected = np.argsort(values, axis=-1, kind="stable")
    np.testing.assert_array_equal(argsort(values), expected)


@pytest.mark.parametrize("num_classes", [2, 100])
def test_first_argmax_of_a_row_with_a_nan(num_classes):
    """Check it where XLA drops NaN from a maximum, and that -inf is a class like any other."""
    rows = np.random.default_rng(0).standard_normal((num_classes, num_classes)).astype(np.float32)
    rows[np.arange(num_classes), np.arange(num_classes)] = np.nan
    rows[0] = np.nan
    for function in (numerics.first_argmax, first_argmax):
        actual = function(jnp.asarray(rows))
        np.testing.assert_array_equal(actual, np.full(num_classes, num_classes))
    impossible = np.where(np.isnan(rows), -np.inf, rows)
    impossible[0] = 0.0
    np.testing.assert_array_equal(first_argmax(impossible), impossible.argmax(-1))
    assert first_argmax(rows[:0]).shape == (0,)


def where_in_numpy(rows, labels, values, adding):
    """Return rows with the entry at each (clipped) label replaced or added to, by a loop."""
    result = np.array(rows)
    for index in np.ndindex(*labels.shape):
        place = (*index, min(max(int(labels[index]), 0), rows.shape[-1] - 1))
        old = result[place] if adding else 0
        result[place] = old + np.broadcast_to(values, labels.shape)[index]
    return result


@pytest.mark.parametrize("backend", ["cpu", "tpu"])
@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("shape", [(), (2, 1, 4), (0,)])
@pytest.mark.parametrize("scalar", [False, True])
def test_entries_at_the_true_class(monkeypatch, backend, adding, shape, scalar):
    """Check both ways to write one entry a row, the scatter and the mask, and their gradients."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    write = numerics.add_to_true_class if adding else numerics.with_true_class
    random = np.random.default_rng(1)
    rows = random.standard_normal((*shape, 4)).astype(np.float32)
    labels = random.integers(4, size=shape)
    values = np.float32(0.75) if scalar else random.standard_normal(shape).astype(np.float32)

    @jax.jit
    def written(rows, labels, values, cotangent):
        result, back = jax.vjp(lambda rows, values: write(rows, labels, values), rows, values)
        return result, *back(cotangent)

    cotangent = np.asarray(random.standard_normal((*shape, 4)), np.float32)
    actual, to_rows, to_values = written(rows, labels, values, cotangent)
    np.testing.assert_array_equal(actual, where_in_numpy(rows, labels, values, adding))
    kept = cotangent if adding else where_in_numpy(cotangent, labels, 0.0, adding=False)
    np.testing.assert_array_equal(to_rows, kept)
    picked = np.take_along_axis(cotangent, np.asarray(labels)[..., None], -1)[..., 0]
    np.testing.assert_allclose(to_values, picked.sum() if scalar else picked, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_entry_at_the_true_class_is_the_same_by_a_gather_and_by_a_mask(monkeypatch, dtype):
    rows = np.random.default_rng(0).normal(0, 9, (6, 5)).astype(np.float32)
    rows[0, 1:3], rows[1, 4] = (np.nan, np.inf), -np.inf
    rows, labels = jnp.asarray(rows).astype(dtype), jnp.array([0, 4, -1, 5, 255, 2])
    found = []
    for backend in ("cpu", "tpu"):
        monkeypatch.setattr(jax, "default_backend", lambda name=backend: name)
        found.append(numerics.true_class(rows, labels))
        if dtype == "float32":
            of_sum = lambda z: jnp.sum(numerics.true_class(z, labels)[1:] ** 2)  # noqa: E731
            found.append(jax.grad(of_sum)(rows))
    middle = len(found) // 2
    for gathered, masked in zip(found[:middle], found[middle:], strict=True):
        assert masked.dtype == gathered.dtype
        np.testing.assert_array_equal(masked, gathered)


@pytest.mark.parametrize("write", [numerics.with_true_class, numerics.add_to_true_class])
def test_a_label_out_of_range_stays_in_its_row(write):
    rows = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    labels = np.asarray([-1, 4, 255])
    actual = np.asarray(write(jnp.asarray(rows), jnp.asarray(labels), 100.0))
    expected = where_in_numpy(rows, labels, 100.0, write is numerics.add_to_true_class)
    np.testing.assert_array_equal(actual, expected)
    picked = numerics.true_class(jnp.asarray(rows), jnp.asarray(labels))
    np.testing.assert_array_equal(picked, [0.0, 7.0, 11.0])


def test_max_where_agrees_with_jnp_max():
    random = np.random.default_rng(2)
    rows = jnp.asarray(random.integers(4, size=(50, 6)), jnp.float32)
    mask = jnp.asarray(random.random((50, 6)) < 0.6).at[:, 0].set(True).at[7].set(False)

    @functools.partial(jax.jit, static_argnums=0)
    def outcome(way, rows):
        value, back = jax.vjp(way, rows)
        return value, jax.jvp(way, (rows,), (rows + 1,))[1], back(jnp.arange(1.0, 51))[0]

    value, slope, gradient = outcome(lambda rows: numerics.max_where(rows, mask), rows)
    plain = outcome(lambda rows: jnp.max(jnp.where(mask, rows, -jnp.inf), -1), rows)
    np.testing.assert_array_equal(value, plain[0])
    np.testing.assert_allclose(np.delete(slope, 7), np.delete(plain[1], 7), rtol=1e-6)
    # no entry: -inf, without a gradient
    np.testing.assert_allclose(gradient, np.insert(np.delete(plain[2], 7, 0), 7, 0, 0), rtol=1e-6)


def long_log_probabilities(logits):
    """Return log p_k and log(1 - p_k) in extended precision, from the odds against the others."""
    logits = np.asarray(logits, np.longdouble)

    def log_sum(z):
        top = z.max()
        return top + np.log(np.exp(z - top).sum())

    log_p, log_rest = np.empty_like(logits), np.empty_like(logits)
    for n, k in np.ndindex(*logits.shape):
        odds = logits[n, k] - log_sum(np.delete(logits[n], k))
        log_p[n, k] = -np.logaddexp(0, -odds)
        log_rest[n, k] = -np.logaddexp(0, odds)
    return log_p.astype(np.float64), log_rest.astype(np.float64)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-5), (np.float64, 1e-13)])
@pytest.mark.parametrize("scale", [0.1, 2.0, 20.0])
def test_log_probabilities(dtype, rtol, scale, x64):
    random = np.random.default_rng(3)
    logits = (scale * random.standard_normal((40, 5))).astype(dtype)
    expected_p, expected_rest = long_log_probabilities(logits)
    log_p, log_rest = log_probabilities(logits)
    # log p is a difference of logits; its absolute error is theirs
    np.testing.assert_allclose(log_p, expected_p, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(log_rest, expected_rest, rtol=rtol, atol=1e-37)


def test_log_probabilities_at_the_extremes():
    logits = jnp.asarray([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0], [1e4, 1e4, 1e4]])
    for dtype in (jnp.float32, jnp.float16):
        z = logits.astype(dtype)
        log_p, log_rest = log_probabilities(z)
        assert log_p.dtype == log_rest.dtype == jnp.float32
        assert np.isfinite(log_p).all()
        assert np.isfinite(log_rest).all()
        total = lambda z: jnp.sum(jnp.stack(numerics.log_probabilities(z)))  # noqa: E731
        gradient = jax.jit(jax.grad(total))(z)
        assert gradient.dtype == dtype
        assert np.isfinite(np.asarray(gradient, np.float32)).all()
    # the winner's doubt is as small as a normal number of float32 can be, and no smaller
    log_rest = log_probabilities(logits)[1]
    assert log_rest[0, 0] < -87
    np.testing.assert_allclose(log_rest[3], np.log(2 / 3), rtol=1e-6)


def test_first_argmax_of_logits_that_are_computed_on_the_way():
    """Check it under `jit`, where a compiler may compute logits anew for each use of them."""
    logits = np.random.default_rng(0).standard_normal((200, 100)).astype(np.float32)
    factor, offset = np.float32(1.9), np.float32(0.3)
    ways = {
        "quotient": lambda z: z / factor,
        "product": lambda z: z * factor,
        "sum of products": lambda z: z * factor + offset * jnp.roll(z, 1, axis=-1),
        "logarithm": lambda z: jax.nn.log_softmax(z * factor),
    }
    for name, way in ways.items():
        expected = np.asarray(way(logits)).argmax(-1)
        actual = jax.jit(lambda z, way=way: numerics.first_argmax(way(z)))(logits)
        np.testing.assert_array_equal(actual, expected, err_msg=name)
