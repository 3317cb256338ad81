"""The Transformer against NumPy and (slow) PyTorch, its inputs, and its writing token by token."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.models.attention import CONTEXT, PAST

from .members import variables_of

SIZES = {
    **{"num_classes": 9, "width": 4, "depth": 2, "heads": 2, "mlp_width": 5, "places": 8},
    "dropout": 0.0,
}
X = {
    "source": np.array([[3, 5, 8, 4, 2], [4, 7, 2, 0, 0]], np.int32),
    "target": np.array([[1, 6, 3, 3], [1, 8, 0, 0]], np.int32),
}


def made(norm="post", dtype="float32", **options):
    network = models.transformer(**SIZES | options, norm=norm, dtype=dtype)
    return network, variables_of(network, X)


@functools.cache
def evaluate(network):
    return jax.jit(functools.partial(network.apply, train=False))


def affine(params, x):
    return x @ params["kernel"] + params["bias"]


def normalized(params, x):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * params["scale"] + params["bias"]


def attended(params, x, context, seen, heads=2):
    """Compute the attention of one text, one query and one head at a time."""
    query = affine(params["query"], x)
    key, value = (affine(params[name], context) for name in ("key", "value"))
    size = x.shape[1] // heads
    result = np.empty_like(x)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for row in range(len(x)):
            last = seen(row)
            shares = np.exp(key[:last, part] @ query[row, part] / math.sqrt(size))
            result[row, part] = shares @ value[:last, part] / shares.sum()
    return affine(params["out"], result)


def stacked(params, x, norm, seen, context=None):
    for number in range(1, len([name for name in params if name.startswith("block")]) + 1):
        block = params[f"block{number}"]

        def residual(x, name, part, block=block):
            scale = block[f"{name}_norm"]
            if norm == "pre":
                return x + part(normalized(scale, x))
            return normalized(scale, x + part(x))

        x = residual(x, "attention", lambda y, b=block: attended(b["attention"], y, y, seen))
        if context is not None:
            x = residual(
                x, "cross", lambda y, b=block: attended(b["cross"], y, context, lambda _: None)
            )
        x = residual(
            x, "mlp", lambda y, b=block: affine(b["mlp_out"], np.maximum(affine(b["mlp_in"], y), 0))
        )
    return normalized(params["norm"], x) if norm == "pre" else x


def embedded(table, tokens):
    width = table.shape[1]
    x = table[tokens] * math.sqrt(width)
    for place in range(len(tokens)):
        for i in range(0, width, 2):
            angle = place / 10_000 ** (i / width)
            x[place, i] += math.sin(angle)
            x[place, i + 1] += math.cos(angle)
    return x


def by_numpy(params, source, target, norm):
    """Compute the logits of one pair; its padding is cut off."""
    table = params["table"]["embedding"]
    source = source[: np.count_nonzero(source)]
    memory = stacked(params["encoder"], embedded(table, source), norm, lambda _: len(source))
    x = embedded(table, target[: np.count_nonzero(target)])
    return stacked(params["decoder"], x, norm, lambda row: row + 1, memory) @ table.T


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_are_those_of_numpy(norm, x64):
    network, variables = made(norm, "float64")
    logits = evaluate(network)(variables, X)
    params = jax.tree.map(np.asarray, variables["params"])
    for row, (source, target) in enumerate(zip(X["source"], X["target"], strict=True)):
        expected = by_numpy(params, source, target, norm)
        # The waves are float32.
        np.testing.assert_allclose(logits[row, : len(expected)], expected, rtol=1e-6, atol=1e-6)


def test_a_later_token_and_padding_change_nothing():
    network, variables = made()
    logits = evaluate(network)(variables, X)
    later = {**X, "target": np.where(np.arange(4) < 2, X["target"], 5)}
    changed = evaluate(network)(variables, later)
    np.testing.assert_allclose(changed[:, :2], logits[:, :2], rtol=1e-5, atol=1e-6)
    assert np.abs(changed[:, 2:] - logits[:, 2:]).max() > 1e-3
    longer = {key: np.pad(leaf, ((0, 0), (0, 2))) for key, leaf in X.items()}
    padded = evaluate(network)(variables, longer)
    np.testing.assert_allclose(padded[:, :4], logits, rtol=1e-5, atol=1e-6)
    nothing = {**X, "source": 0 * X["source"]}
    assert np.isfinite(evaluate(network)(variables, nothing)).all()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_token_by_token_the_logits_are_the_same(norm):
    network, variables = made(norm)
    logits = evaluate(network)(variables, X)
    writing = network.clone(past=6)
    visible = jnp.asarray(X["source"] != 0)[:, None, None, :]
    memory = network.apply(variables, jnp.asarray(X["source"]), method="encode")
    for place in range(4):
        given = memory if place == 0 else None
        step, changed = writing.apply(
            variables,
            jnp.asarray(X["target"][:, place]),
            place,
            given,
            visible,
            method="step",
            mutable=[PAST, CONTEXT],
        )
        variables = {**variables, **changed}
        real = X["target"][:, place] != 0
        np.testing.assert_allclose(step[real], logits[real, place], rtol=1e-4, atol=1e-5)
