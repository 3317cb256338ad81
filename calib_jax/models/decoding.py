r"""Decoding: write the most probable sequence of tokens, one after the other.

A model is a function `step(tokens, place, past, context) -> (logits, past)`: the logits of the next
token after one more token of each row. `past` and `context` are trees of arrays whose leading axis
is the rows: `past` is what the step keeps of earlier tokens, and `context` what it reads only, such
as the encoded sentence. `models.translate` decodes with a network of `models.transformer`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from calib_jax.core import checks
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.types import Number, PyTree
from calib_jax.models.attention import CONTEXT, PAST
from calib_jax.models.layers import PADDING
from calib_jax.models.transformer import Transformer

Step: TypeAlias = Callable[[Array, Array, PyTree, PyTree], tuple[Array, PyTree]]
Tokens: TypeAlias = Int[Array, "rows length"]
BEGIN, END = 1, 2
_NEVER = -jnp.inf


class Decoded(NamedTuple):
    """Decoded sequences.

    Attributes:
      tokens: as far as the token that ends a sequence, then 0; without it if the sequence was cut.
      scores: the log-probability, divided by the length penalty.
    """

    tokens: Tokens
    scores: Float[Array, " rows"]


def beam_search(
    step: Step,
    past: PyTree,
    context: PyTree,
    *,
    rows: int,
    length: int,
    beam: int = 4,
    begin: int = BEGIN,
    end: int = END,
    banned: Sequence[int] = (),
    length_penalty: Number = 0.6,
    temperature: Number = 1.0,
) -> Decoded:
    r"""Search for the most probable sequence, with several candidates a row.

    Each step extends all candidates and keeps the `beam` most probable ones that have not ended. A
    row ends when `beam` sequences have ended among the most probable ones, or when no candidate can
    still score higher. The result is the ended sequence with the highest score

    $$\frac{\sum_t \log p(y_t \mid y_{<t}, x)}{\mathrm{lp}(y)}, \qquad
      \mathrm{lp}(y) = \left(\frac{5 + |y|}{6}\right)^\alpha,$$

    or the most probable candidate if none has ended. `beam=1` writes the most probable next token.

    Args:
      step, past, context: the model, see above; it is called with `rows * beam` rows.
      rows: the number of rows.
      length: the largest number of tokens, with the one that ends a sequence.
      beam: the number of candidates of a row.
      begin, end: the tokens that begin and end a sequence.
      banned: tokens that are never written.
      length_penalty: $\alpha$; 0 favors short sequences.
      temperature: the logits are divided by it.

    References:
      Wu et al. 2016, Google's Neural Machine Translation System, equation 14.
    """
    _check(rows, length, length_penalty, temperature)
    checks.whole("beam", beam)
    past, context = (
        jax.tree.map(lambda leaf: jnp.repeat(leaf, beam, axis=0), tree) for tree in (past, context)
    )

    class State(NamedTuple):
        place: Array
        tokens: Int[Array, "rows beam length"]
        log_p: Float[Array, "rows beam"]
        best: Decoded
        ended: Int[Array, " rows"]  # the number of sequences that have ended
        past: PyTree

    def open_rows(state: State) -> Bool[Array, " rows"]:
        # Log-probabilities only fall, and the penalty is largest at the full length.
        highest = jnp.max(state.log_p, axis=-1) / _penalty(length, length_penalty)
        return (state.ended < beam) & (highest > state.best.scores)

    def going(state: State) -> Array:
        return (state.place < length) & jnp.any(open_rows(state))

    def following(state: State) -> State:
        place = state.place
        before = state.tokens.reshape(rows * beam, length)[:, jnp.maximum(place - 1, 0)]
        last = jnp.where(place > 0, before, begin)
        logits, past = step(last, place, state.past, context)
        log_p = _log_probabilities(logits, temperature, banned)
        num_tokens = log_p.shape[-1]
        # At most `beam` extensions end, so twice as many hold `beam` that do not.
        few = min(2 * beam, num_tokens)
        log_p, tokens = lax.top_k(log_p, few)
        log_p = (state.log_p[:, :, None] + log_p.reshape(rows, beam, few)).reshape(rows, -1)
        log_p, chosen = lax.top_k(log_p, min(2 * beam, beam * few))
        parent = chosen // few
        written = jnp.take_along_axis(tokens.reshape(rows, -1), chosen, axis=-1)
        extended = jnp.take_along_axis(state.tokens, parent[:, :, None], axis=1)
        extended = extended.at[:, :, place].set(written)

        possible = log_p > _NEVER
        ends = (written == end) & possible & (jnp.arange(log_p.shape[1]) < beam)[None]
        ends &= open_rows(state)[:, None]
        scores = jnp.where(ends, log_p / _penalty(place + 1, length_penalty), _NEVER)
        number = jnp.argmax(scores, axis=-1)
        best = Decoded(_of_row(extended, number), _of_row(scores, number))

        # The most probable ones that have not ended; sorted, since top_k is stable.
        log_p, kept = lax.top_k(jnp.where(written == end, _NEVER, log_p), beam)
        parent = jnp.take_along_axis(parent, kept, axis=-1)
        row = (parent + beam * jnp.arange(rows)[:, None]).reshape(-1)
        return State(
            place + 1,
            jnp.take_along_axis(extended, kept[:, :, None], axis=1),
            log_p,
            _chosen(best.scores > state.best.scores, state.best, best),
            state.ended + jnp.sum(ends, axis=-1),
            jax.tree.map(lambda leaf: leaf[row], past),
        )

    start = State(
        jnp.zeros((), int),
        jnp.full((rows, beam, length), PADDING),
        # All candidates are equal at first, so keep one.
        jnp.broadcast_to(jnp.where(jnp.arange(beam) == 0, 0.0, _NEVER), (rows, beam)),
        Decoded(jnp.full((rows, length), PADDING), jnp.full(rows, _NEVER)),
        jnp.zeros(rows, int),
        past,
    )
    state = lax.while_loop(going, following, start)
    cut = Decoded(state.tokens[:, 0], state.log_p[:, 0] / _penalty(length, length_penalty))
    return _chosen(state.ended == 0, state.best, cut)


def greedy_search(step: Step, past: PyTree, context: PyTree, **options: Any) -> Decoded:
    """Write the most probable next token until every row has ended: `beam_search` with `beam=1`.

    Args:
      step, past, context: the model, see above.
      **options: as for `beam_search`; `length_penalty`, by default 0, changes only the scores.
    """
    return beam_search(step, past, context, beam=1, **{"length_penalty": 0.0, **options})


def translate(
    network: Any,
    variables: PyTree,
    source: Any,
    *,
    length: int = 64,
    beam: int = 4,
    length_penalty: Number = 0.6,
    temperature: Number = 1.0,
) -> Decoded:
    """Translate sentences with a Transformer, computing keys and values once per token.

    Args:
      network: a network of `models.transformer`.
      variables: its variables.
      source: `[rows, length]`, the tokens of the sentences with 0 for padding.
      length: the largest number of tokens of a translation, with the one that ends it.
      beam: the number of candidates; 1 writes the most probable next token.
      length_penalty, temperature: as for `beam_search`.

    >>> from calib_jax import models
    >>> network = models.transformer(num_classes=9, width=8, depth=1, heads=2, mlp_width=8)
    >>> x = network.example_inputs()
    >>> variables = network.init(jax.random.key(0), x, train=False)
    >>> models.translate(network, variables, x["source"], length=3, beam=2).tokens.shape
    (2, 3)
    """
    if not isinstance(network, Transformer):
        raise TypeError(
            f"translate: network must be one of models.transformer, got {type(network).__name__}."
        )
    source = jnp.asarray(source)
    if source.ndim != 2 or not jnp.issubdtype(source.dtype, jnp.integer):
        raise ValueError(
            f"translate: source must be integers [rows, length], got {source.dtype} {source.shape}."
        )
    checks.between("the length of source", source.shape[1], 1, network.places)
    checks.between("length", length, 1, network.places)
    checks.whole("beam", beam)
    _check(len(source), length, length_penalty, temperature)
    return _translated(
        network, variables, source, length_penalty, temperature, length=length, beam=beam
    )


@functools.partial(jax.jit, static_argnames=("network", "length", "beam"))
def _translated(
    network: Transformer,
    variables: PyTree,
    source: Tokens,
    length_penalty: Number,
    temperature: Number,
    *,
    length: int,
    beam: int,
) -> Decoded:
    network = network.clone(past=length)
    rows = len(source)
    memory = network.apply(variables, source, method="encode")
    visible = (source != PADDING)[:, None, None, :]
    apply = functools.partial(network.apply, method="step")
    # Compute the first token once to create the collections; the search computes it again.
    first = (variables, jnp.full(rows, BEGIN), 0, memory, visible)
    _, kept = apply(*first, mutable=[PAST, CONTEXT])

    def step(tokens: Array, place: Array, past: PyTree, context: PyTree) -> tuple[Array, PyTree]:
        fixed, visible = context
        given = {**variables, PAST: past, **fixed}
        logits, changed = apply(given, tokens, place, None, visible, mutable=[PAST])
        return logits, changed[PAST]

    return beam_search(
        step,
        kept[PAST],
        ({CONTEXT: kept[CONTEXT]}, visible),
        rows=rows,
        length=length,
        beam=beam,
        banned=(PADDING, BEGIN),
        length_penalty=length_penalty,
        temperature=temperature,
    )


def _check(rows: int, length: int, length_penalty: Number, temperature: Number) -> None:
    checks.whole("rows", rows)
    checks.whole("length", length)
    checks.at_least("length_penalty", length_penalty, 0)
    checks.above("temperature", temperature, 0)


def _of_row(values: Array, number: Int[Array, " rows"]) -> Array:
    """Return one candidate of each row."""
    return values[jnp.arange(len(values)), number]


def _chosen(second: Bool[Array, " rows"], a: Decoded, b: Decoded) -> Decoded:
    """Return the second sequence of each row where `second` is true, else the first."""
    return Decoded(
        jnp.where(second[:, None], b.tokens, a.tokens), jnp.where(second, b.scores, a.scores)
    )


def _penalty(length: Number, exponent: Number) -> Array:
    return ((5 + jnp.asarray(length)) / 6) ** exponent


def _log_probabilities(logits: Array, temperature: Number, banned: Sequence[int]) -> Array:
    logits = at_least_float32(logits) / temperature
    if banned:
        num_tokens = logits.shape[-1]
        if not all(0 <= token < num_tokens for token in banned):
            raise ValueError(f"banned must lie in [0, {num_tokens - 1}], got {tuple(banned)}.")
        logits = logits.at[:, jnp.asarray(banned)].set(_NEVER)
    return jax.nn.log_softmax(logits)
