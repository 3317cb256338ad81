"""Searches on small models whose sequences can all be listed, and with a network."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

from .members import variables_of

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


@pytest.mark.parametrize(
    ("length_penalty", "temperature"), [(0.0, 1.0), (0.6, 1.0), (2.0, 0.5), (1.0, 3.0)]
)
def test_a_wide_beam_finds_the_best_of_all_sequences(length_penalty, temperature):
    different = 0
    for seed in range(4):
        table = bigrams(seed)
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


def variables():
    drawn = variables_of(NETWORK, NETWORK.example_inputs())
    return jax.tree.map(lambda leaf: 3 * leaf, drawn)


def test_a_network_translates_as_its_whole_pass_does():
    """The next token is the most probable one of a pass without kept keys and values."""
    weights = variables()
    decoded = models.translate(NETWORK, weights, SOURCE, length=6, beam=1)
    apply = jax.jit(functools.partial(NETWORK.apply, train=False))
    target = np.zeros((3, 7), np.int32)
    target[:, 0] = BEGIN
    total = np.zeros(3)
    open_rows = np.ones(3, bool)
    for place in range(6):
        logits = np.array(apply(weights, {"source": SOURCE, "target": target[:, :6]}), float)
        logits = logits[:, place]
        logits[:, [0, BEGIN]] = -np.inf
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        target[:, place + 1] = np.where(open_rows, log_p.argmax(axis=-1), 0)
        total += np.where(open_rows, log_p.max(axis=-1), 0)
        open_rows &= target[:, place + 1] != END
    np.testing.assert_array_equal(decoded.tokens, target[:, 1:])
    sizes = (target[:, 1:] != 0).sum(axis=1)
    np.testing.assert_allclose(decoded.scores, total / ((5 + sizes) / 6) ** 0.6, rtol=1e-4)


def test_the_score_of_a_beam_is_that_of_its_tokens():
    weights = variables()
    wide = models.translate(NETWORK, weights, SOURCE, length=6, beam=8, length_penalty=0.0)
    target = np.pad(wide.tokens, ((0, 0), (1, 0)), constant_values=BEGIN)
    apply = jax.jit(functools.partial(NETWORK.apply, train=False))
    logits = np.array(apply(weights, {"source": SOURCE, "target": target[:, :6]}), float)
    logits[..., [0, BEGIN]] = -np.inf
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    picked = np.take_along_axis(log_p, np.asarray(wide.tokens)[..., None], axis=-1)[..., 0]
    total = np.where(wide.tokens != 0, picked, 0).sum(axis=1)
    np.testing.assert_allclose(wide.scores, total, rtol=1e-4)
