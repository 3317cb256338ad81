"""The predictions of one model for one set of examples, validated once for many computations.

    evaluation = inference.Evaluation(logits, labels, weights, clusters=image_of_pixel)
    evaluation.values({"ece": metrics.ece, "nll": metrics.nll})
    inference.estimates(several, evaluation, key=key)
    inference.calibration_test("kuiper", evaluation)
    inference.compare_metrics(several, evaluation, other_evaluation, key=key)

Every function of `(logits, labels, ...)` here builds an `Evaluation`, or takes one in place of the
logits, and then neither labels nor weights nor clusters. Several computations on the same
predictions share one `Evaluation`: the values are validated once, and top labels, metrics,
resampled metrics and the statistics of comparisons are computed once.

Functions of the top label read `top_label` and `cluster`, and no logits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Integer, Shaped

from calib_jax.core import arrays, checks, numerics, values
from calib_jax.core.types import Array, Batch, Labels, Logits, PyTree, Weights
from calib_jax.inference.p_values import LEAST_UNITS, Column, effective
from calib_jax.metrics import contract
from calib_jax.metrics.contract import AnyMetric, Members, Metrics, Predictions

_Value = TypeVar("_Value")

_MOST_ENTRIES = 2**28  # copied logits of 1 GB


class TopLabel(NamedTuple):
    """The confidence of each prediction, and 1 where the prediction is right, else 0."""

    confidence: Column
    correct: Column


class Copies(NamedTuple):
    """The examples as tests count them: a row of weight k is k examples.

    Attributes:
      logits: the logits of each example.
      labels: the label of each example.
      row: the row from which each example is copied.
      cluster: the cluster of each example, numbered from 0; None if all examples are independent,
        also because every cluster has one example. The copies of a row are in one cluster.
    """

    logits: Logits
    labels: Labels
    row: Integer[np.ndarray, " examples"]
    cluster: Integer[np.ndarray, " examples"] | None


@dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)
class Evaluation:
    """Validated predictions of one model, with all that is computed from them more than once.

    Attributes:
      logits: `[rows, classes]`; `[rows, 1]` for stated confidences.
      labels: `[rows]`; 1 where a stated confidence is right, else 0.
      weights: `[rows]`; None for weight 1 each.
      clusters: `[rows]`, the names of the clusters; None for independent examples.
      name: the name of the caller, for error messages.
      rows: logits, labels and weights as compiled programs take them; rows of weight 0 are at their
        end if the evaluation is `padded`.

    >>> from calib_jax import inference, metrics
    >>> logits = np.tile(np.float32([[2, 0]]), (100, 1))
    >>> evaluation = inference.Evaluation(logits, (np.arange(100) < 40).astype(int))
    >>> evaluation
    Evaluation(100 rows, 2 classes)
    >>> evaluation.values(metrics.accuracy)
    {'accuracy': Array(0.6, dtype=float32)}
    >>> error = inference.debiased_squared_error(evaluation)
    >>> test = inference.calibration_test("spiegelhalter", evaluation)
    """

    logits: Logits
    labels: Labels
    weights: Weights | None
    clusters: Shaped[np.ndarray, " rows"] | None
    name: str
    rows: Batch
    _derived: dict[Hashable, Any]

    def __init__(
        self,
        logits: Any,
        labels: Any = None,
        weights: Any = None,
        *,
        clusters: Any = None,
        padded: bool = False,
        name: str = "Evaluation",
    ) -> None:
        """Validate the examples and store them along one batch axis.

        Args:
          logits: `[*batch, classes]`, or a `metrics.Stated`, which holds its labels.
          labels: `[*batch]`, integers.
          weights: `[*batch]`; weight 0 excludes an example.
          clusters: `[*batch]`, the cluster of each example, as integers or strings; examples of
            different clusters are independent. None if all examples are independent.
          padded: whether sets of about as many examples share compiled programs, which then also
            compute rows of weight 0; values may differ in their last digits.
          name: the name of the caller, for error messages.
        """
        logits, labels = values.rows_of(name, logits, labels)
        ids = None if clusters is None else values.ids_of("clusters", clusters, np.shape(labels))
        given = values.flat_rows(name, *map(arrays.gathered, (logits, labels, weights)))
        if not checks.concrete(*given):
            raise TypeError(f"{name} reads the values of its inputs: call it outside jit.")
        rows: Batch = _padded(*given) if padded else given
        values.judge(name, *rows, num_rows=len(given[1]))
        self._store(*given, ids, name, rows)

    def _store(self, *values: Any) -> None:
        for field, value in zip(dataclasses.fields(self), (*values, {}), strict=True):
            object.__setattr__(self, field.name, value)

    def __repr__(self) -> str:
        num_rows, num_classes = self.logits.shape
        return f"Evaluation({num_rows} rows, {num_classes} classes)"

    def once(self, name: Hashable, compute: Callable[[], _Value], key: Any = None) -> _Value:
        """Return the value stored under a name and a PRNG key; compute it on the first call."""
        if key is not None:
            name = name, str(key.dtype), np.asarray(jax.random.key_data(key)).tobytes()
        if name not in self._derived:
            self._derived[name] = compute()
        value: _Value = self._derived[name]
        return value

    @functools.cached_property
    def weight(self) -> Column:
        """`[rows]`, the weight of each row in float64, also where none are given."""
        return _weights(self.logits, self.weights).astype(np.float64)

    @functools.cached_property
    def present(self) -> Any:
        """`[rows]`, whether the weight of each row is positive."""
        return self.weight > 0

    @functools.cached_property
    def counts(self) -> bool:
        """Whether the weights count examples: 0, 1, 2, ..."""
        return bool(np.all(self.weight == np.round(self.weight)))

    @property
    def num_units(self) -> float:
        """The number of independent clusters or examples, `effective` where they are unequal."""
        if self.clusters is not None:
            place = np.unique(self.clusters, return_inverse=True)[1]
            return effective(np.bincount(place, self.weight))
        return float(np.sum(self.weight)) if self.counts else effective(self.weight)

    @property
    def few_clusters(self) -> bool:
        """Whether there are clusters, but too few for a test."""
        return self.cluster is not None and self.num_units < LEAST_UNITS

    @functools.cached_property
    def copies(self) -> Copies:
        """The examples as tests count them; raise ValueError if the weights are no counts."""
        rows = np.arange(len(self.labels))
        logits, labels = self.logits, self.labels
        if self.weights is not None:
            weights = np.asarray(self.weights)
            fractions, total = np.sum(weights != np.round(weights)), np.sum(weights, dtype=float)
            if fractions:
                raise ValueError(
                    f"{self.name}: {fractions} of {weights.size} weights are not integers, but a"
                    " test counts examples.\nUse weight 0 for absent examples and k for k copies."
                )
            if total * logits.shape[-1] > _MOST_ENTRIES:
                raise ValueError(
                    f"{self.name}: the weights count {total:,.0f} examples, too many to copy.\n"
                    'Divide them by a common factor, or use method="percentile", which takes any'
                    " weights."
                )
            rows = np.repeat(rows, weights.astype(np.int64))
            logits, labels = _taken((logits, labels), rows)
        cluster = None
        if self.clusters is not None:
            names, cluster = np.unique(self.clusters[rows], return_inverse=True)
            cluster = None if len(names) == len(cluster) else cluster
        return Copies(logits, labels, rows, cluster)

    @property
    def cluster(self) -> Integer[np.ndarray, " examples"] | None:
        """The cluster of each example of `copies`."""
        return self.copies.cluster

    def top_label(self, excluded_class: int | None = None) -> TopLabel:
        """Compute the confidence and the correctness of each example of `copies`, in float64."""

        def compute() -> TopLabel:
            columns = self.columns(_top_label, excluded_class)
            return TopLabel(*(column.astype(np.float64) for column in columns))

        return self.once(("top label", excluded_class), compute)

    def columns(self, function: Callable[..., PyTree], *options: Hashable) -> PyTree:
        """Compute `function(Predictions, *options)` of each example of `copies`, on the host.

        The function is compiled once for each of few sizes of padded blocks.
        """
        logits, labels = (np.asarray(array) for array in self.copies[:2])
        size = min(padded_size(len(labels)), 4096)

        def of_block(start: int) -> PyTree:
            block = (_with_rows(array[start : start + size], size) for array in (logits, labels))
            return _of_view(function, options, *block)

        blocks = [of_block(start) for start in range(0, len(labels), size)]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(labels)], *blocks)

    def refuse_stated(self, name: str) -> None:
        """Raise TypeError for stated confidences."""
        if values.is_stated(self.logits):
            raise TypeError(
                f"{name} needs logits of classes: a Stated has the confidence of the answer alone."
            )

    def refuse_clusters(self, name: str, instead: str = "") -> None:
        """Raise TypeError for examples in clusters."""
        if self.cluster is not None:
            raise TypeError(f"{name} takes no clusters: it needs independent examples{instead}.")

    def values(self, metrics: AnyMetric | Metrics) -> dict[str, Any]:
        """Compute metrics by name, as `metrics.values_of` does, each metric once."""
        compute = lambda missing: _values(missing, *self.rows)  # noqa: E731
        return self.of_metrics("values", dict(contract.members_of(metrics)), compute)

    def of_metrics(
        self,
        name: Hashable,
        metrics: Metrics,
        compute: Callable[[Members], dict[str, Any]],
        key: Any = None,
    ) -> dict[str, Any]:
        """Return the results of metrics that are stored, as in `once`; compute the others."""
        known: dict[AnyMetric, Any] = self.once(name, dict, key)
        missing = {label: metric for label, metric in metrics.items() if metric not in known}
        if missing:
            computed = compute(tuple(missing.items()))
            known.update({metric: computed[label] for label, metric in missing.items()})
        return {label: known[metric] for label, metric in metrics.items()}

    def part(self, rows: Integer[np.ndarray, " part"]) -> Evaluation:
        """Select some rows, which are not validated again.

        Rows of weight 0 are added, so that parts of several sizes share compiled programs.
        """
        if not np.any(self.present[rows]):
            raise ValueError(f"{self.name}: a part needs a row of positive weight.")
        weights = _weights(self.logits, self.weights)[rows]
        size = min(padded_size(len(rows)), len(self.rows[1]))
        padding = (0, size - len(rows))
        rows, weights = np.pad(rows, padding, mode="edge"), np.pad(weights, padding)
        clusters = None if self.clusters is None else self.clusters[rows]
        part = object.__new__(Evaluation)
        batch = *_taken((self.logits, self.labels), rows), jax.device_put(weights)
        part._store(*batch, clusters, self.name, batch)
        return part


@functools.partial(jax.jit, static_argnums=0)
def _values(members: Members, *rows: Any) -> dict[str, Any]:
    return contract.values_of_stats(dict(members), contract.stats_of(dict(members), *rows))


def _weights(logits: Logits, weights: Weights | None) -> np.ndarray:
    if weights is None:
        return np.ones(len(logits), numerics.wide(logits.dtype))
    return np.asarray(weights)


def _padded(logits: Any, labels: Any, weights: Any) -> Any:
    """Add rows of weight 0."""
    rows, size = (logits, labels, _weights(logits, weights)), padded_size(len(labels))
    return jax.device_put(tuple(_with_rows(np.asarray(each), size) for each in rows))


def _with_rows(array: np.ndarray, size: int) -> np.ndarray:
    """Add rows of 0 up to a size."""
    return np.pad(array, ((0, size - len(array)), *[(0, 0)] * (array.ndim - 1)))


def _taken(arrays: Sequence[Array], rows: Integer[np.ndarray, " part"]) -> list[Array]:
    """Take rows on the host, because a gather is compiled again for every number of rows."""
    return [jax.device_put(np.asarray(array)[rows]) for array in arrays]


def evaluated(
    name: str, logits: Any, labels: Any, weights: Any = None, clusters: Any = None
) -> Evaluation:
    """Return the evaluation that stands in place of the logits, or build one from arrays.

    Args:
      name: the name of the caller, for error messages.
      logits: an `Evaluation`, or `[*batch, classes]`.
      labels: `[*batch]`; None with an evaluation.
      weights: `[*batch]` or None; None with an evaluation.
      clusters: `[*batch]` or None; None with an evaluation.
    """
    given = {"labels": labels, "weights": weights, "clusters": clusters}
    if isinstance(logits, Evaluation):
        extra = [argument for argument, value in given.items() if value is not None]
        if extra:
            raise TypeError(
                f"{name}: an Evaluation holds its labels, weights and clusters: leave out"
                f" {' and '.join(extra)}."
            )
        return logits
    return Evaluation(logits, labels, weights, clusters=clusters, name=name)


def on_same_examples(
    name: str, models: Sequence[Any], labels: Any, weights: Any, clusters: Any = None
) -> list[Evaluation]:
    """Apply `evaluated` to several models; evaluations of other examples raise an error.

    Stated confidences for the same questions may differ in the labels, but not in their number.
    """
    evaluations = [evaluated(name, model, labels, weights, clusters) for model in models]
    if labels is None:
        for other in evaluations[1:]:
            both_stated = values.is_stated(evaluations[0].logits) and values.is_stated(other.logits)
            # Two models answer the same question, one of them right and the other wrong.
            for field in ("weights", "clusters", *(() if both_stated else ("labels",))):
                one, another = (getattr(each, field) for each in (evaluations[0], other))
                if (one is None) != (another is None) or not np.array_equal(one, another):
                    raise ValueError(
                        f"{name}: the evaluations hold different {field}: compare predictions of"
                        " the same examples in the same order."
                    )
            if len(other.labels) != len(evaluations[0].labels):
                raise ValueError(
                    f"{name}: {len(evaluations[0].labels)} and {len(other.labels)} confidences:"
                    " compare answers to the same questions in the same order."
                )
    return evaluations


def runs_of_two(
    name: str, model_a: Any, model_b: Any, labels: Any, weights: Any, clusters: Any
) -> tuple[list[Evaluation], int]:
    """Return the runs of two models on the same examples, and how many are those of the first.

    A model is a list of runs, which are evaluations, stated confidences, or arrays with two axes
    or more; an evaluation, an array or nested numbers are one run.
    """

    def is_run(run: Any) -> bool:
        return isinstance(run, Evaluation | values.Stated) or getattr(run, "ndim", 0) >= 2

    def runs_of(model: Any) -> list[Any]:
        several = isinstance(model, list | tuple) and model and all(map(is_run, model))
        return list(model) if several else [model]

    a, b = runs_of(model_a), runs_of(model_b)
    return on_same_examples(name, [*a, *b], labels, weights, clusters), len(a)


def in_order(confidence: Column, labels: Any) -> np.ndarray:
    """Return the indices that sort examples by confidence, then by label.

    Sorted examples receive the same draws whatever the order in which they are given, except that
    examples of equal confidence and label may exchange theirs.
    """
    return np.lexsort((np.asarray(labels), confidence))


def _top_label(view: Predictions, excluded_class: int | None) -> tuple[Array, Array]:
    view = view.without(excluded_class)
    return view.confidence, view.hit


@functools.partial(jax.jit, static_argnums=(0, 1))
def _of_view(
    function: Callable[..., PyTree], options: tuple[Any, ...], logits: Logits, labels: Labels
) -> PyTree:
    return function(Predictions(logits, labels), *options)


def padded_size(number: int) -> int:
    """Return the padded size for a number of rows, so that few programs are compiled.

    Small sets are padded up to fourfold, because compiling takes longer than computing there, and
    large ones by a quarter at most.

    >>> [padded_size(number) for number in (3, 257, 1024, 5000, 9000)]
    [256, 1024, 1024, 5120, 10240]
    """
    small = next((size for size in (256, 1024, 4096) if number <= size), 0)
    step = 2 ** ((number - 1).bit_length() - 3)
    return small or -(-number // step) * step
