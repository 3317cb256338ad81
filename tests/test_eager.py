"""Eager operations by NumPy give what XLA gives: bytes, types, weak types and devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests import eager

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 4, 5)).astype(np.float32)
Y = RANDOM.integers(-9, 9, X.shape).astype(np.int32)
OPERATIONS = (
    *(lambda x, y, b: x[:, None], lambda x, y, b: x[1, ::2, -1], lambda x, y, b: x.T),
    *(lambda x, y, b: x.reshape(5, 12), lambda x, y, b: jnp.stack([y, y], axis=1)),
    *(lambda x, y, b: jnp.where(b, x, 0.0), lambda x, y, b: jnp.where(b, y, 1)),
    *(lambda x, y, b: b & ~b, lambda x, y, b: y | 3, lambda x, y, b: ~y),
    *(lambda x, y, b: b.astype(float), lambda x, y, b: y.astype(float)),
    *(lambda x, y, b: x.astype(int), lambda x, y, b: lax.iota(jnp.uint8, 9)),
    *(lambda x, y, b: x.astype(jnp.bfloat16)[1:], lambda x, y, b: y.astype(jnp.uint8)),
    *(lambda x, y, b: jnp.arange(7), lambda x, y, b: jnp.eye(3), lambda x, y, b: jnp.asarray(2.5)),
    *(lambda x, y, b: jnp.asarray(X), lambda x, y, b: jnp.asarray(np.arange(3))),
    lambda x, y, b: lax.dynamic_slice(x, (2, 3, 9), (2, 2, 2)),
    *(lambda x, y, b: jnp.squeeze(x[:1]), lambda x, y, b: jnp.broadcast_to(x[0], (2, 4, 5))),
    *(lambda x, y, b: jnp.zeros((0, 3))[None], lambda x, y, b: jnp.pad(x, 1)),
    lambda x, y, b: jax.device_put(x, jax.devices()[1])[0],
)  # fmt: skip


def described(array):
    array = jnp.asarray(array)
    return array.shape, array.dtype, array.weak_type, array.sharding, array.committed


def test_results_are_those_of_xla():
    for number, operation in enumerate(OPERATIONS):
        results = []
        for by_xla in (False, True):
            arguments = jnp.asarray(X), jnp.asarray(Y), jnp.asarray(Y > 0)
            if by_xla:
                with eager.disabled():
                    results.append(operation(*arguments))
            else:
                results.append(operation(*arguments))
        one, other = results
        assert described(one) == described(other), number
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), number


WRONG = (
    lambda x, y: lax.concatenate([x, y], 0),
    lambda x, y: lax.select(x > 0, x, x[:1]),
    lambda x, y: lax.slice(x, (0, 0, 0), (4, 4, 5)),
    lambda x, y: lax.reshape(x, (7,)),
)


def test_errors_are_those_of_jax():
    x, y = jnp.asarray(X), jnp.asarray(Y)
    for operation in WRONG:
        with eager.disabled(), pytest.raises((TypeError, ValueError)) as by_xla:
            operation(x, y)
        with pytest.raises(type(by_xla.value)) as by_numpy:
            operation(x, y)
        assert str(by_numpy.value).splitlines()[0] == str(by_xla.value).splitlines()[0]
