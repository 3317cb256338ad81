"""Are two models equal for practical purposes, within a margin that the user sets?"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from calib_jax.core.inputs import checks


class Equivalence(NamedTuple):
    """The conclusions from an interval of the difference b - a and a margin.

    A value of False means "not shown", and never "the opposite is true".

    Attributes:
      margin: as given, in units of the difference.
      equivalent: whether the models are shown to differ by less than the margin.
      no_larger: whether b is shown to exceed a by less than the margin; in an error or a loss, b
        is then not worse.
      no_smaller: whether b is shown to lie below a by less than the margin.
    """

    margin: float
    equivalent: bool
    no_larger: bool
    no_smaller: bool


def equivalence(change: Any, margin: float) -> Equivalence:
    r"""Test whether two models are equivalent, by two one-sided tests (TOST).

    Each one-sided test at level $\alpha$ rejects "the difference is at least the margin" if the
    interval of level $1 - 2 \alpha$ ends below it: 90 % intervals, the default everywhere, test at
    5 %. A large p-value of "no difference" is no evidence of equivalence; this test is.

    Args:
      change: a difference with `value`, `low` and `high`: the result of `compare_calibration` (in
        units of squared error), `compare_ece`, `compare_temperature`, `compare_scores`, or
        `paired_bootstrap` with a metric that is not `biased`.
      margin: the largest difference without practical meaning, above 0. It must be decided before
        looking at the data, and has no default.

    References:
      Schuirmann, A comparison of the two one-sided tests procedure and the power approach, 1987.

    >>> import jax
    >>> from calib_jax import inference
    >>> logits = jax.numpy.tile(jax.numpy.array([[2.0, 0.0]]), (1000, 1))
    >>> labels = (jax.numpy.arange(1000) < 120).astype(int)
    >>> change = inference.compare_scores(logits, 1.1 * logits, labels)
    >>> inference.equivalence(change, margin=0.05)
    Equivalence(margin=0.05, equivalent=True, no_larger=True, no_smaller=True)
    """
    if not checks.concrete(margin) or not margin > 0 or not math.isfinite(margin):
        raise ValueError(
            f"margin must be a positive number, got {margin!r}. No data can show that two models do"
            " not differ at all: give the largest difference that does not matter to you."
        )
    below, above = float(change.high) < margin, float(change.low) > -margin
    return Equivalence(float(margin), below and above, below, above)
