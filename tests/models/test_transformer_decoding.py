"""The Transformer against NumPy and (slow) PyTorch, its writing token by token, and searches."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.models.attention import CONTEXT, PAST

from . import members
from .members import affine, attended, evaluated, variables_of

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


normalized = functools.partial(members.normalized, epsilon=1e-6)


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
    logits = evaluated(network, variables, X)
    params = jax.tree.map(np.asarray, variables["params"])
    for row, (source, target) in enumerate(zip(X["source"], X["target"], strict=True)):
        expected = by_numpy(params, source, target, norm)
        np.testing.assert_allclose(logits[row, : len(expected)], expected, rtol=1e-12, atol=1e-12)
    assert np.isfinite(evaluated(network, variables, {**X, "source": 0 * X["source"]})).all()


def test_token_by_token_the_logits_are_the_same(x64):
    network, variables = made(dtype="float64")
    logits = evaluated(network, variables, X)
    dropping = network.clone(dropout=0.5)  # writing and encoding evaluate
    writing = dropping.clone(past=6)
    visible = jnp.asarray(X["source"] != 0)[:, None, None, :]
    step_of = jax.jit(functools.partial(writing.apply, method="step", mutable=[PAST, CONTEXT]))
    memory = jax.jit(functools.partial(dropping.apply, method="encode"))(variables, X["source"])
    for place in range(4):
        given = memory if place == 0 else None
        step, changed = step_of(variables, X["target"][:, place], place, given, visible)
        variables = {**variables, **changed}
        real = X["target"][:, place] != 0
        np.testing.assert_allclose(step[real], logits[real, place], rtol=1e-6, atol=1e-6)


BEGIN, END = 1, 2
NUM_TOKENS, LENGTH, ROWS = 5, 4, 3


def bigrams(seed, spread=2.0):
    """Draw the logits of a token after two earlier ones, for each row."""
    draw = np.random.default_rng(seed)
    return spread * draw.normal(size=(ROWS, NUM_TOKENS, NUM_TOKENS, NUM_TOKENS)).astype(np.float32)


def step(tokens, place, past, context):
    """Look up the logits after two tokens; the later of them is the next step's past."""
    logits = context[jnp.arange(len(tokens)), past, tokens]
    return logits, tokens


@functools.partial(jax.jit, static_argnames=("search", "options"))
def decoded(table, search, options):
    start = jnp.zeros(ROWS, int)
    return search(step, start, jnp.asarray(table), rows=ROWS, length=LENGTH, **dict(options))


def searched(table, search=models.beam_search, **options):
    return jax.device_get(decoded(table, search, tuple(options.items())))


def exhaustive(table, length_penalty, temperature):
    """List every sequence that ends within the length, and return the best one of each row."""
    best = []
    for row in table:
        logits = np.array(row, float) / temperature
        logits[..., BANNED] = -np.inf
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        scores = {}
        for size in range(LENGTH):
            for words in itertools.product((3, 4), repeat=size):
                total, before, last = 0.0, 0, BEGIN
                for token in (*words, END):
                    total += log_p[before, last, token]
                    before, last = last, token
                scores[(*words, END)] = total / ((6 + size) / 6) ** length_penalty
        best.append(max(scores.items(), key=lambda entry: entry[1]))
    return best


WIDE = 2**LENGTH  # two tokens can be written, so there are at most so many candidates
BANNED = (0, BEGIN)


@pytest.mark.parametrize(("length_penalty", "temperature"), [(0.0, 1.0), (2.0, 0.5), (1.0, 3.0)])
def test_a_wide_beam_finds_the_best_of_all_sequences(length_penalty, temperature):
    different = 0
    for seed in range(4):
        table = bigrams(seed).astype(["float32", "bfloat16"][seed % 2])
        options = {"length_penalty": length_penalty, "temperature": temperature, "banned": BANNED}
        tokens, scores = searched(table, beam=WIDE, **options)
        best = exhaustive(table, length_penalty, temperature)
        for row, (sequence, score) in enumerate(best):
            assert tuple(tokens[row, : len(sequence)]) == sequence
            assert not tokens[row, len(sequence) :].any()
            np.testing.assert_allclose(scores[row], score, rtol=1e-5, atol=1e-6)
        greedy = searched(table, models.greedy_search, banned=BANNED)
        different += np.any(greedy.tokens != tokens, axis=1).sum()
    assert different  # the best sequence is not always the greedy one


def greedily(row):
    """Write the most probable token, in plain Python."""
    before, last, words = 0, BEGIN, []
    while len(words) < LENGTH and last != END:
        logits = np.where(np.isin(np.arange(NUM_TOKENS), BANNED), -np.inf, row[before, last])
        before, last = last, int(np.argmax(logits))
        words.append(last)
    return words


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_of_one_is_greedy(length_penalty):
    options = {"length_penalty": length_penalty, "banned": BANNED}
    cut = 0
    for seed in range(5):
        table = bigrams(seed, spread=1.0)
        table[..., END] -= 1.0  # some sequences are cut
        one = searched(table, beam=1, **options)
        greedy = searched(table, models.greedy_search, **options)
        np.testing.assert_array_equal(one.tokens, greedy.tokens)
        np.testing.assert_allclose(one.scores, greedy.scores, rtol=1e-5)
        for row, tokens in zip(table, greedy.tokens, strict=True):
            words = greedily(row)
            assert tokens[: len(words)].tolist() == words
            cut += END not in words
    assert 0 < cut < 15


def test_a_search_ends_early():
    steps = []

    def counted(tokens, place, past, context):
        jax.debug.callback(lambda place: steps.append(int(place)), place)
        return step(tokens, place, past, context)

    table = bigrams(0)
    table[..., END] += 30  # every sequence ends at once
    for search in (models.greedy_search, models.beam_search):
        steps.clear()
        decoded = search(
            counted, jnp.zeros(ROWS, int), jnp.asarray(table), rows=ROWS, length=LENGTH
        )
        jax.block_until_ready(decoded)
        jax.effects_barrier()
        assert steps == [0]
        assert decoded.tokens[:, 0].tolist() == [END] * ROWS


NETWORK = models.transformer(
    num_classes=11, width=8, depth=1, heads=2, mlp_width=8, places=16, dropout=0.0
)
SOURCE = np.array([[5, 3, 9, 2, 0], [4, 2, 0, 0, 0], [8, 8, 10, 7, 2]], np.int32)


@functools.cache
def variables():
    drawn = variables_of(NETWORK, NETWORK.example_inputs())
    return jax.tree.map(lambda leaf: 3 * leaf, drawn)


def test_one_token_is_translated_and_drawn():
    weights, padded = variables(), np.where(np.arange(5) < 1, SOURCE, 0)
    one = models.translate(NETWORK, weights, SOURCE[:, :1], length=1, beam=1)
    several = models.translate(NETWORK, weights, padded, length=6, beam=1)
    np.testing.assert_array_equal(one.tokens, several.tokens[:, :1])
    three = NETWORK.clone(num_classes=2, places=3).example_inputs()
    assert [side.tolist() for side in three.values()] == [[[1, 1, 0], [1] * 3], [[1, 0], [1, 1]]]
    assert NETWORK.example_inputs()["source"].shape == (2, 5)


@pytest.mark.parametrize("beam", [1, 8])
def test_the_score_of_a_beam_is_that_of_its_tokens_in_a_whole_pass(beam):
    weights = variables()
    wide = models.translate(NETWORK, weights, SOURCE, length=6, beam=beam)
    target = np.pad(wide.tokens, ((0, 0), (1, 0)), constant_values=BEGIN)
    pairs = {"source": SOURCE, "target": target[:, :6]}
    logits = np.array(evaluated(NETWORK, weights, pairs), float)
    logits[..., [0, BEGIN]] = -np.inf
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    picked = np.take_along_axis(log_p, np.asarray(wide.tokens)[..., None], axis=-1)[..., 0]
    total = np.where(wide.tokens != 0, picked, 0).sum(axis=1)
    sizes = (np.asarray(wide.tokens) != 0).sum(axis=1)
    np.testing.assert_allclose(wide.scores, total / ((5 + sizes) / 6) ** 0.6, rtol=1e-4)
    if beam == 1:
        likely = np.where(wide.tokens != 0, log_p.argmax(axis=-1), 0)
        np.testing.assert_array_equal(wide.tokens, likely)
