"""Examples of a stream, read once in each pass of a fit, as pieces of one shape.

A piece has a fixed number of rows, whatever the sizes of the blocks: each function of a piece is
compiled once, and the memory does not grow with the stream. A stream of fewer rows is one piece,
padded to a power of two. Sums over a piece have the precision of the logits; sums over pieces are
in float64 on the host.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from calib_jax.calibrators.parts import contract
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.invalid_values import (
    InvalidValues,
    Suspicion,
    count_invalid_values,
    refuse,
)
from calib_jax.core.numerics import wide
from calib_jax.core.rows import present
from calib_jax.core.types import Array, Labels, Logits, PyTree, Weights

_Piece: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]

_ENTRIES = 2**21  # logits per piece
_LEAST_ROWS = 1024  # the least size of a stream that is one piece


class Pieces:
    """The pieces of a stream; the first pass validates them.

    Args:
      name: the name of the calibrator, for error messages.
      blocks: tuples `(logits, labels)` or `(logits, labels, weights)` with any leading axes, or a
        function that returns an iterator of such tuples for each pass.
    """

    def __init__(self, name: str, blocks: Any) -> None:
        if isinstance(blocks, Iterator):
            raise TypeError(
                f"{name}: the blocks are an iterator, which can be read once, and a fit reads them"
                " several times.\nGive a list of blocks, or a function that returns a new iterator."
            )
        if not (callable(blocks) or isinstance(blocks, Iterable)):
            raise TypeError(
                f"{name}: blocks must be a list of blocks or a function that returns an iterator of"
                f" them, got an object of type {type(blocks).__name__}."
            )
        self.name = name
        self.blocks: Callable[[], Iterable[Any]] = blocks if callable(blocks) else lambda: blocks
        self.num_classes = 0
        self.num_rows = 0  # 0 until the first pass ends
        self.weight = 0.0
        self.usable = True
        self.suspicion = Suspicion()

    def results(self, function: Callable[..., PyTree], *numbers: Any) -> Iterator[PyTree]:
        """Apply a compiled function to the logits, labels and weights of each piece.

        The next piece is read while the current piece is computed.

        Args:
          function: the function of logits, labels, weights and numbers.
          numbers: the other arguments of the function.
        """
        is_first_pass, num_rows, result = self.num_rows == 0, 0, None
        for piece, size in self._pieces():
            if is_first_pass:
                self._check(piece, num_rows, size)
            previous, result = result, function(*piece, *numbers)
            if previous is not None:
                yield jax.device_get(previous)
            num_rows += size
        if is_first_pass and not self.weight > 0:
            cause = f"all {num_rows} weights are 0" if num_rows else "the stream has no examples"
            raise ValueError(f"{self.name}: {cause}, so there is nothing to fit.")
        self.suspicion.refuse(self.name)
        if num_rows != (self.num_rows or num_rows):
            raise ValueError(
                f"{self.name}: the first pass read {self.num_rows} rows and a later one {num_rows};"
                " return a new iterator over the same blocks each time."
            )
        self.num_rows = num_rows
        yield jax.device_get(result)

    def means(self, function: Callable[..., PyTree], *numbers: Any) -> PyTree:
        """Average the results of a function over all pieces, in float64.

        Args:
          function: as for `results`; it returns the weight of a piece and a tree of means.
          numbers: the other arguments of the function.
        """
        total, sums = 0.0, None
        for weight, means in self.results(function, *numbers):
            weight = float(weight)
            weighed = jax.tree.map(lambda leaf, w=weight: w * leaf.astype(np.float64), means)
            sums = weighed if sums is None else jax.tree.map(np.add, sums, weighed)
            total += weight
        return jax.tree.map(
            lambda leaf: leaf / total if total else np.full_like(leaf, np.nan), sums
        )

    def _pieces(self) -> Iterator[tuple[_Piece, int]]:
        """Join and cut the blocks; yield pieces and their numbers of rows before padding."""
        kept: list[_Piece] = []
        count, alone = 0, True
        for rows in self._rows():
            size = max(1, _ENTRIES // self.num_classes)
            while len(rows[1]):
                taken, rest = zip(*((part[: size - count], part[size - count :]) for part in rows),
                                  strict=True)  # fmt: skip
                kept.append(taken)
                count += len(taken[1])
                rows = rest
                if count == size:
                    yield _joined(kept, 0), size
                    kept, count, alone = [], 0, False
        if kept:
            size = min(size, max(_LEAST_ROWS, 2 ** (count - 1).bit_length())) if alone else size
            yield _joined(kept, size - count), count

    def _rows(self) -> Iterator[_Piece]:
        for number, block in enumerate(self.blocks()):
            name = f"{self.name}, block {number}"
            if not (isinstance(block, tuple | list) and len(block) in (2, 3)):
                raise TypeError(
                    f"{name}: a block is a tuple (logits, labels) or (logits, labels, weights), got"
                    f" an object of type {type(block).__name__}."
                )
            if np.size(block[1]) == 0:
                continue
            logits, labels, weights = checks.flat_rows(
                name, *block, *[None] * (3 - len(block)), is_part=True
            )
            num_classes = logits.shape[1]
            contract.check_classes(name, num_classes)
            if num_classes != (self.num_classes or num_classes):
                raise ValueError(
                    f"{name} has {num_classes} classes and the first block {self.num_classes}; give"
                    " every block the same classes."
                )
            self.num_classes = num_classes
            if self.num_rows == 0:  # the first pass
                self.suspicion.add(logits, weights)
            array = np.asarray(logits).astype(wide(logits.dtype))
            weight = np.ones(len(labels)) if weights is None else np.asarray(weights)
            yield array, np.asarray(labels), weight.astype(array.dtype)

    def _check(self, piece: _Piece, first: int, size: int) -> None:
        invalid, usable = _checked(*piece)
        name = f"{self.name}, rows {first} to {first + size - 1}"
        refuse(name, invalid, (size, self.num_classes), weightless=True)
        self.weight += float(invalid.weight)
        self.usable &= bool(usable)


def _joined(parts: list[_Piece], padding: int) -> _Piece:
    """Concatenate rows; add rows of weight 0."""
    logits, labels, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    if not padding:
        return logits, labels, weight
    return (
        np.pad(logits, ((0, padding), (0, 0))),
        np.pad(labels, (0, padding)),
        np.pad(weight, (0, padding)),
    )


@jax.jit
def _checked(
    logits: Logits, labels: Labels, weights: Weights
) -> tuple[InvalidValues, Bool[Array, ""]]:
    wrong = contract.unusable_rows(*present(logits, labels, weights)[:2])
    return count_invalid_values(logits, labels, weights), ~jnp.any(wrong)
