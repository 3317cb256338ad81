"""Properties of random cases: what the laws promise, tried on inputs that nobody chose.

Random cases for the property tests, and the two sizes in which every property runs.

A case is drawn by Hypothesis as a few words and numbers, and built from them by NumPy: so a
failure is printed in one line, and shapes come from a short list, since JAX compiles a program
for every shape.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.programs import drop_many_programs

FEW, MANY = 30, 10_000
KINDS = ("normal", "whole numbers", "two levels", "one large", "equal rows")
DTYPES = ("int8", "uint8", "int16", "int32")


class Batch(NamedTuple):
    """Logits `[n, K]`, labels `[n]` and weights `[n]`; rows of weight 0 hold anything."""

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def rows(self, index: np.ndarray) -> "Batch":
        """Return some rows, in this order."""
        return Batch(*(column[index] for column in self))


def build(
    shape: tuple[int, int],
    seed: int,
    kind: str,
    exponent: int,
    impossible: float,
    absent: float,
    tiny: bool,
    dtype: str,
) -> Batch:
    """Build the batch that these words and numbers describe.

    Args:
      shape: rows and classes.
      seed: of everything random.
      kind: which logits, one of `KINDS`.
      exponent: the power of ten that the logits are multiplied by.
      impossible: the share of logits that are -inf; every row keeps a finite one.
      absent: the share of rows with weight 0, whose logits and labels are no numbers and classes.
      tiny: whether some weights are as small as 1e-30.
      dtype: of the labels, where it holds the classes; else int32.
    """
    rows, classes = shape
    random = np.random.default_rng(seed)
    logits = {
        "normal": lambda: random.standard_normal(shape),
        "whole numbers": lambda: random.integers(-3, 4, shape).astype(float),
        "two levels": lambda: random.integers(0, 2, shape).astype(float),
        "one large": lambda: random.standard_normal(shape) + 50 * (random.random(shape) < 0.1),
        "equal rows": lambda: np.tile(random.standard_normal(classes), (rows, 1)),
    }[kind]() * 10.0**exponent
    mask = random.random(shape) < impossible
    mask[np.arange(rows), random.integers(0, classes, rows)] = False
    logits = np.where(mask, -np.inf, logits).astype(np.float32)
    labels = np.where(
        random.random(rows) < 0.5, logits.argmax(axis=1), random.integers(0, classes, rows)
    ).astype(dtype if classes - 1 <= np.iinfo(dtype).max else "int32")
    weights = random.choice([1.0, 1.0, 2.0, 0.25], rows)
    if tiny:
        weights = weights * random.choice([1.0, 1e-6, 1e-30], rows)
    gone = random.random(rows) < absent
    if rows:
        gone[random.integers(rows)] = False
    logits[gone] = random.choice([np.nan, np.inf, -np.inf], (int(gone.sum()), classes))
    labels[gone] = random.choice([-1, 127, classes]) if np.iinfo(labels.dtype).min < 0 else 255
    return Batch(logits, labels, np.where(gone, 0, weights).astype(np.float32))


def batches(
    shapes: tuple[tuple[int, int], ...],
    *,
    exponents: tuple[int, int] = (-6, 30),
    impossible: bool = True,
    absent: bool = True,
    tiny: bool = True,
    dtypes: tuple[str, ...] = DTYPES,
) -> st.SearchStrategy[Batch]:
    """Draw batches of these shapes, with labels of these types."""
    return st.builds(
        build,
        st.sampled_from(shapes),
        st.integers(0, 2**32 - 1),
        st.sampled_from(KINDS),
        # Ordinary scales in half of the cases.
        st.one_of(st.integers(-1, 1), st.integers(*exponents)),
        st.sampled_from((0.0, 0.0, 0.3) if impossible else (0.0,)),
        st.sampled_from((0.0, 0.3) if absent else (0.0,)),
        st.sampled_from((False, tiny)),
        st.sampled_from(dtypes),
    )


def few_and_many(
    few: dict[str, st.SearchStrategy], many: dict[str, st.SearchStrategy], *, share: float = 1.0
) -> Callable[[Callable[..., None]], type]:
    """Make a property two tests: 30 cases, and 10,000 (`slow`).

    Args:
      few: strategies of the arguments of the 30 cases. Programs are compiled for each shape, type
        and function: of 30 cases with many of these every one would compile its own.
      many: the same for the 10,000 cases.
      share: of the number of cases, where several properties of one subject divide them.
    """

    def decorate(check: Callable[..., None]) -> type:
        def run(self: Any, **case: Any) -> None:
            check(**case)
            drop_many_programs()

        def test(strategies: dict[str, st.SearchStrategy], number: int) -> Any:
            options = settings(
                max_examples=max(1, int(share * number)),
                deadline=None,
                print_blob=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            return options(given(**strategies)(run))

        members = {
            "test_few": test(few, FEW),
            "test_many": pytest.mark.slow(test(many, MANY)),
            "__doc__": check.__doc__,
        }
        return type(check.__name__, (), members)

    return decorate
