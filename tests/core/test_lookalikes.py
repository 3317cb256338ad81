"""Probabilities in the place of logits: found by their values, and logits are let through."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.core import checks
from calib_jax.core.lookalikes import (
    look_like_probabilities,
    refuse_probabilities,
    refuse_probability_column,
)

RANDOM = np.random.default_rng(0)
P = RANDOM.dirichlet(np.full(10, 0.5), size=40).astype(np.float32)


@pytest.mark.parametrize("num_classes", [2, 10, 100])
@pytest.mark.parametrize("digits", [2, 3, 4, 6, None])
def test_probabilities_are_refused_however_they_are_printed(num_classes, digits):
    p = RANDOM.dirichlet(np.full(num_classes, 0.3), size=60)
    p = p if digits is None else p.round(digits)
    for dtype in (np.float32, np.float64):
        with pytest.raises(ValueError, match="nll: all 60 rows of the logits look like prob"):
            refuse_probabilities("nll", p.astype(dtype))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision(dtype):
    with pytest.raises(ValueError, match="all 40 rows"):
        refuse_probabilities("nll", jnp.asarray(P, dtype))


@pytest.mark.parametrize(
    "logits",
    [
        RANDOM.standard_normal((40, 10)),
        RANDOM.uniform(size=(40, 2)),
        np.zeros((40, 10)),
        RANDOM.integers(-5, 6, size=(40, 10)).astype(float),
        P + 1,
        P - 1,
        np.log(P),
        np.concatenate([P, P[:1] + 0.01]),
        np.where(np.arange(40)[:, None] == 7, np.nan, P),
    ],
    ids=["normal", "uniform", "zero", "integers", "up", "down", "log", "all but one", "NaN"],
)
def test_logits_are_let_through(logits):
    refuse_probabilities("nll", logits.astype(np.float32))
    refuse_probabilities("nll", jnp.asarray(logits, jnp.float32))


def test_rows_of_weight_zero_are_neither_for_nor_against():
    rows = np.concatenate([P[:2] + 5, P]).astype(np.float32)
    weights = np.r_[0.0, 0.0, np.ones(40)]
    refuse_probabilities("nll", rows)
    with pytest.raises(ValueError, match="all 40 rows"):
        refuse_probabilities("nll", jnp.asarray(rows), jnp.asarray(weights))
    refuse_probabilities("nll", P, np.zeros(40))
    refuse_probabilities("nll", P[:0])


def test_one_column():
    column = RANDOM.uniform(size=30).astype(np.float32)
    for given in (column, column[:, None], jnp.asarray(column)):
        with pytest.raises(ValueError, match=r"score: all 30 values .* lie in \[0, 1\]"):
            refuse_probability_column("score", given)
    column[3] = -0.1
    refuse_probability_column("score", column)
    with pytest.raises(ValueError, match="all 29 values"):
        refuse_probability_column("score", column, np.arange(30) != 3)
    refuse_probabilities("score", column[:, None])


def test_traced_rows_give_the_same_answer():
    for rows in (P, P + 1, P.round(2), np.zeros((3, 4), np.float32)):
        traced = jax.jit(lambda z: look_like_probabilities(z, jnp))(rows)
        np.testing.assert_array_equal(traced, look_like_probabilities(rows))


def test_whoever_looks_at_values_refuses_them():
    labels = np.zeros(40, int)
    with pytest.raises(ValueError, match="ece: all 40 rows of the logits look like") as caught:
        checks.flat_rows("ece", P, labels, None)
    assert all(len(line) < 121 for line in str(caught.value).split("\n"))
    jax.jit(lambda z: checks.flat_rows("ece", z, labels, None)[0])(P)
