"""Accuracy of classes with many, some and few training examples, for long-tailed data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Number, Scalar
from calib_jax.metrics.contract.metric import Labels, Logits, Metric, Weights
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns, ratio

SHOTS = ("many", "medium", "few")


class ShotAccuracy(NamedTuple):
    """The mean recall of the classes of each group; NaN for a group without examples."""

    many: Scalar
    medium: Scalar
    few: Scalar


def shots_of_classes(class_counts: Any, *, many: Number = 100, few: Number = 20) -> np.ndarray:
    """Return the group of each class: "many", "medium" or "few" training examples.

    Pass it to `group_errors` for the calibration error by class frequency. The group of an example
    must be the group of the predicted class: a group chosen by the label is never calibrated.

    Args:
      class_counts: the number of training examples of each class.
      many: a class with more examples than this is "many".
      few: a class with fewer examples than this is "few".

    References:
      Liu et al. 2019, Large-Scale Long-Tailed Recognition in an Open World.

    >>> shots_of_classes([500, 100, 20, 19]).tolist()
    ['many', 'medium', 'medium', 'few']
    """
    checks.at_least("class_counts", class_counts, 0)
    checks.at_least("many", many, few, ", as is few")
    counts = np.asarray(class_counts)
    return np.where(counts > many, "many", np.where(counts < few, "few", "medium"))


def shot_accuracy(
    class_counts: Any, *, many: Number = 100, few: Number = 20, only: str | None = None
) -> Metric[..., Any]:
    """Build the metric `ShotAccuracy`: the mean recall of many-, medium- and few-shot classes.

    It works with `Stream` and intervals like every metric.

    Args:
      class_counts: the number of training examples of each class; `dataset.class_counts`.
      many, few: as in `shots_of_classes`.
      only: "many", "medium" or "few", for a metric that returns this number alone; None returns
        all three.

    References:
      Liu et al. 2019, Large-Scale Long-Tailed Recognition in an Open World.

    >>> metric = shot_accuracy([500, 50, 5])
    >>> logits = 2 * jnp.eye(3)[jnp.array([0, 1, 1, 0])]
    >>> [round(float(group), 2) for group in metric(logits, jnp.array([0, 1, 1, 2]))]
    [1.0, 1.0, 0.0]
    """
    shots = shots_of_classes(class_counts, many=many, few=few)
    groups = tuple(SHOTS.index(shot) for shot in shots)
    if only is None:
        return _SEVERAL.with_options(groups=groups)
    checks.one_of("only", only, SHOTS)
    return _ALONE[only].with_options(groups=groups)


def _hits_by_label(predictions: Predictions) -> Columns:
    num_classes = predictions.num_classes
    # Rows with a NaN or a label out of range are counted in an extra cell.
    cell = jnp.where(predictions.valid, predictions.labels, num_classes)
    return Columns({"hit": predictions.hit}, cell, num_classes + 1)


def _of_groups(sums: Sums, *, groups: tuple[int, ...] = ()) -> ShotAccuracy:
    weight, hit = jnp.asarray(sums["weight"]), jnp.asarray(sums["hit"])
    num_classes = weight.shape[0] - 1
    if len(groups) != num_classes:
        raise ValueError(
            f"shot_accuracy: class_counts has {len(groups)} entries, but the logits have"
            f" {num_classes} classes: pass one count for each class."
        )
    recall = ratio(hit[:-1], weight[:-1])
    invalid = jnp.where(weight[-1] > 0, jnp.nan, 0.0)
    occurs = weight[:-1] > 0
    means = []
    for number in range(len(SHOTS)):
        member = (np.asarray(groups) == number) & occurs
        means.append(ratio(jnp.sum(jnp.where(member, recall, 0)), jnp.sum(member)) + invalid)
    return ShotAccuracy(*means)


def _declared(name: str, finish: Callable[..., Any]) -> Metric[..., Any]:
    def function(
        logits: Logits,
        labels: Labels = None,
        weights: Weights = None,
        *,
        groups: tuple[int, ...] = (),
    ) -> Any:
        """Compute the mean recall of the classes of a group; `groups` is the group of each."""

    function.__name__ = name
    return Metric(function, _hits_by_label, finish)


def _alone(number: int) -> Callable[..., Scalar]:
    def of_group(sums: Sums, *, groups: tuple[int, ...] = ()) -> Scalar:
        return _of_groups(sums, groups=groups)[number]

    return of_group


_SEVERAL = _declared("shot_accuracy", _of_groups)
_ALONE = {shot: _declared(f"{shot}_shot_accuracy", _alone(i)) for i, shot in enumerate(SHOTS)}
