"""Which predictions differ between two models, and are the changes for the better?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core.types import Array, Labels, Logits
from calib_jax.core.values import is_stated
from calib_jax.inference.evaluation import Evaluation, independent, on_same_examples
from calib_jax.metrics.contract.predictions import Predictions


class Flips(NamedTuple):
    """Numbers of examples by what changes from model a to model b, as Python integers.

    Attributes:
      to_right: a is wrong, b is right.
      to_wrong: a is right, b is wrong.
      between_wrong: both are wrong, with different classes.
      same: both predict the same class; of stated confidences, both are right or both wrong.
    """

    to_right: int
    to_wrong: int
    between_wrong: int
    same: int

    @property
    def share(self) -> float:
        """The share of examples whose predicted class changes (churn)."""
        return 1 - self.same / sum(self)


class McNemar(NamedTuple):
    """McNemar's test of equal accuracy.

    Attributes:
      to_right: examples that only model b predicts right.
      to_wrong: examples that only model a predicts right.
      p_value: exact and two-sided; 1 if no example distinguishes the models.
      mid_p: the p-value with half the probability of the observed outcome. It is less conservative,
        and the size of the test exceeds the nominal size slightly at times.
    """

    to_right: int
    to_wrong: int
    p_value: float
    mid_p: float


def flips(logits_a: Any, logits_b: Any, labels: Any = None, weights: Any = None) -> Flips:
    """Count the predictions that change from model a to model b.

    Args:
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> a, b = jnp.array([[2.0, 0], [2, 0], [0, 2]]), jnp.array([[0.0, 2], [2, 0], [2, 0]])
    >>> inference.flips(a, b, jnp.array([0, 0, 0]))
    Flips(to_right=1, to_wrong=1, between_wrong=0, same=1)
    """
    return _flips(on_same_examples("flips", (logits_a, logits_b), labels, weights))


def _flips(models: Sequence[Evaluation]) -> Flips:
    (class_a, hit_a), (class_b, hit_b) = (
        map(np.asarray, _predicted(model.copies.logits, model.copies.labels)) for model in models
    )
    # Answers without classes are the same if both are right, or both wrong.
    stated = any(is_stated(model.logits) for model in models)
    changed = hit_a != hit_b if stated else class_a != class_b
    numbers = (~hit_a & hit_b, hit_a & ~hit_b, changed & ~hit_a & ~hit_b, ~changed)
    return Flips(*(int(np.sum(number)) for number in numbers))


def mcnemar(logits_a: Any, logits_b: Any, labels: Any = None, weights: Any = None) -> McNemar:
    r"""Test whether two models have the same accuracy on the same, independent examples.

    Only the m examples that one model alone predicts right distinguish the models. If the
    accuracies are equal, each of these examples favors either model with probability 1/2:

    $$p = \min(1, 2 P(\mathrm{Bin}(m, 1/2) \le \min(n_{01}, n_{10})))$$

    It does not test calibration. For examples in clusters use `compare_metrics` with
    `metrics.error`.

    Args:
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.

    References:
      McNemar, Note on the sampling error of the difference between correlated proportions, 1947.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> a = jnp.tile(jnp.array([[2.0, 0.0]]), (14, 1))
    >>> test = inference.mcnemar(a, -a, (jnp.arange(14) >= 3).astype(int))
    >>> test.to_right, test.to_wrong, round(test.p_value, 4), round(test.mid_p, 4)
    (11, 3, 0.0574, 0.0352)
    """
    models = on_same_examples("mcnemar", (logits_a, logits_b), labels, weights)
    independent("mcnemar", models[0], "; use compare_metrics(metrics.error, ...)")
    changes = _flips(models)
    return McNemar(
        changes.to_right, changes.to_wrong, *_p_values(changes.to_right, changes.to_wrong)
    )


def _p_values(to_right: int, to_wrong: int) -> tuple[float, float]:
    """Compute the exact p-value and the mid-p from both numbers of discordant examples."""
    total, fewer = to_right + to_wrong, min(to_right, to_wrong)

    def probability(k: int) -> float:
        ways = math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        return math.exp(ways - total * math.log(2))

    tail, last = math.fsum(map(probability, range(fewer + 1))), probability(fewer)
    return min(1.0, 2 * tail), min(1.0, 2 * tail - last)


@jax.jit
def _predicted(logits: Logits, labels: Labels) -> tuple[Array, Array]:
    view = Predictions(logits, labels)
    return view.predicted, view.rank == 0
