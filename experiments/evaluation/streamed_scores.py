"""Scores of predictions whose logits are not kept: values from streamed statistics.

`evaluate_network` adds the test set of a trained network to streams, batch by batch, and fits the
calibrator on at most a million examples of the validation set. It writes values.json, which `read`
reads for the tables of several runs.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calib_jax import calibrators, metrics, train
from calib_jax.core.examples import Source
from calib_jax.core.files import reading
from calib_jax.report import render
from calib_jax.report.score import chosen_metrics
from calib_jax.train import log
from experiments.evaluation.scoring import on_excluded, without_excluded

if TYPE_CHECKING:
    from experiments.running import building

# A function that returns a new iterable of the blocks (logits, labels, weights) for each pass.
Blocks = Callable[[], Iterable[tuple[Any, Any, Any]]]

_MOST_ROWS = 2**20  # examples of which a calibrator is fitted
KINDS = ("keep", "float16", "none")  # of --logits
_PARTS = ("validation", "test")
VALUES, TEXT = "values.json", "values.txt"
_NO_INTERVALS = "Values from streamed statistics; without the logits there are no intervals."
_AGAIN = "experiments.evaluate --logits=none writes it again"


class Scores(NamedTuple):
    """Metric values before and after a calibrator.

    Attributes:
      num_examples: the number of labels of positive weight.
      num_classes: the number of classes.
      before: the values of the uncalibrated logits, by metric.
      after: the values after the calibrator; empty without a calibrator.
      calibrator: the name of the calibrator, how the fit ended, and the temperature of temperature
        scaling; empty without a calibrator.
      notes: the notes of the streams, such as a histogram in place of rows.
      num_bins: the number of bins of every metric that has bins.
    """

    num_examples: int
    num_classes: int
    before: dict[str, float]
    after: dict[str, float]
    calibrator: dict[str, Any]
    notes: list[str]
    num_bins: int

    def __str__(self) -> str:
        columns = {"given": self.before}
        if self.after:
            columns[self.calibrator["name"]] = self.after
        rows = [[name, *(f"{of[name]:.4f}" for of in columns.values())] for name in self.before]
        table = render.aligned([["metric", *columns], *rows])
        head = f"{self.num_examples:,} examples. {_NO_INTERVALS}"
        return "\n".join([head, "", table, *self.notes])

    def save(self, folder: pathlib.Path) -> list[str]:
        """Save values.json and values.txt; return the file names."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = {"intervals": _NO_INTERVALS, **self._asdict()}
        log.replace(folder / TEXT, f"{self}\n")
        log.replace(folder / VALUES, json.dumps(contents, indent=2) + "\n")
        return [VALUES, TEXT]

    def check_table(self, name: str, criteria: Sequence[str], num_bins: int) -> None:
        """Raise an error if the values do not match a table's temperatures and bins."""
        if self.num_bins != num_bins:
            raise ValueError(
                f"{name} has streamed values with {self.num_bins} bins, and the table has"
                f" {num_bins}: evaluate it again, or use {self.num_bins} bins."
            )
        if criteria and (list(criteria) != ["nll"] or self.calibrator.get("name") != "temperature"):
            values = f"after {self.calibrator['name']}" if self.after else "without a calibrator"
            raise ValueError(
                f"{name} has streamed values {values}, and the table compares temperatures by"
                f" {', '.join(criteria)}.\nEvaluate it again with --calibrate=temperature, and for"
                " other criteria than nll with --logits=keep."
            )


def read(folder: pathlib.Path) -> Scores | None:
    """Read the values of a run whose logits were not kept; None if there are none."""
    path = folder / "report" / VALUES
    try:
        contents = reading.json_mapping(path, "streamed values", _AGAIN)
    except FileNotFoundError:
        return None
    try:
        scores = Scores(**{name: contents[name] for name in Scores._fields})
        numbers = [*scores.before.values(), *scores.after.values()]
        whole = [scores.num_examples, scores.num_classes, scores.num_bins]
        temperature = scores.calibrator.get("temperature", 1.0)
        is_valid = all(isinstance(number, float | int) for number in [*numbers, temperature])
        is_valid &= all(type(number) is int for number in whole)
    except (KeyError, AttributeError):
        is_valid = False
    if not is_valid:
        raise reading.Unreadable(f"{path} holds no streamed values; {_AGAIN}.")
    return scores


def remove(folder: pathlib.Path) -> None:
    """Remove the values of an earlier evaluation; the logits are kept now."""
    for name in (VALUES, TEXT):
        (folder / "report" / name).unlink(missing_ok=True)


def check_places(folder: pathlib.Path) -> None:
    """Raise an error if the blocks of logits would replace other files in the folder of a run."""
    for part in _PARTS:
        train.check_replaceable(_place(folder, part))


def _place(folder: pathlib.Path, part: str) -> pathlib.Path:
    return folder / f"predictions_{part}"


def score(
    blocks: Blocks, names: Sequence[str], *, num_bins: int = 15, calibrate: str, fit_on: Blocks
) -> Scores:
    """Compute streamed values of a set, before and after a calibrator fitted on another set.

    Args:
      blocks: the set.
      names: the names of metrics with scalar values.
      num_bins: the number of bins of every metric that has bins.
      calibrate: the name of the calibrator; empty for none.
      fit_on: the set on which the calibrator is fitted.
    """
    several = chosen_metrics(names, num_bins)
    before, after = metrics.Stream(several), metrics.Stream(several)
    fitted: dict[str, Any] = {}
    apply, num_classes = None, 0
    if calibrate:
        calibrator = calibrators.named(calibrate)
        params = calibrator.fit(*_sample(fit_on()))
        fitted = {"name": calibrate, "state": params.state.name}
        if calibrate == "temperature":
            fitted["temperature"] = float(params.temperature)
        apply = functools.partial(calibrator.apply, params)
    num_examples = 0
    for logits, labels, weights in blocks():
        before.update(logits, labels, weights)
        num_examples += int((weights > 0).sum())
        num_classes = logits.shape[-1]
        if apply is not None:
            after.update(apply(logits), labels, weights)
    return Scores(
        num_examples,
        num_classes,
        _numbers(before.compute()),
        _numbers(after.compute()) if apply is not None else {},
        fitted,
        before.notes,
        num_bins,
    )


def _sample(blocks: Iterable[tuple[Any, Any, Any]]) -> tuple[np.ndarray, ...]:
    """Return at most `_MOST_ROWS` examples, evenly spaced over all blocks."""
    kept: list[tuple[np.ndarray, ...]] = []
    stride, first = 1, 0
    for block in blocks:
        num_rows = np.size(block[1])
        rows = [np.asarray(part).reshape(num_rows, *np.shape(part)[np.ndim(block[1]) :])
                for part in block]  # fmt: skip
        kept.append(tuple(part[-first % stride :: stride] for part in rows))
        first += num_rows
        while sum(len(part[1]) for part in kept) > _MOST_ROWS:
            joined = [np.concatenate(parts)[::2] for parts in zip(*kept, strict=True)]
            kept, stride = [tuple(joined)], 2 * stride
    return tuple(np.concatenate(parts) for parts in zip(*kept, strict=True))


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def evaluate_network(
    experiment: building.Experiment,
    state: train.TrainState,
    folder: pathlib.Path,
    *,
    logits: str,
    names: Sequence[str],
    calibrate: str,
    batch_size: int = 0,
) -> Scores:
    """Evaluate a network on the test set without keeping its logits in memory.

    Args:
      experiment: the experiment of the network.
      state: the train state of the network, on the host.
      folder: the folder of the run, for the blocks of logits if they are written.
      logits: "none", or "float16" to write the logits of both sets in blocks.
      names: the names of metrics with scalar values.
      calibrate: the name of the calibrator; empty for none.
      batch_size: the batch size; 0 uses the batch size of training.
    """
    batch_size = batch_size or experiment.plan.batch_size
    blocks_of = {}
    for part in _PARTS:
        source = getattr(experiment.dataset, part)
        blocks_of[part] = functools.partial(_blocks, experiment, state, source, batch_size)
        if logits == "float16":
            place = _place(folder, part)
            train.write_blocks(blocks_of[part](), place, dtype=logits)
            blocks_of[part] = functools.partial(train.read_blocks, place)

    def without_class(part: str) -> Iterator[tuple[Any, Any, Any]]:
        for block, labels, weights in blocks_of[part]():
            yield without_excluded(block, experiment.config), labels, weights

    scored = score(
        functools.partial(without_class, "test"),
        names,
        num_bins=experiment.config.num_bins,
        calibrate=calibrate,
        fit_on=functools.partial(without_class, "validation"),
    )
    notes = on_excluded(experiment.config, experiment.dataset.class_names)
    return scored._replace(notes=[*notes, *scored.notes])


def _blocks(
    experiment: building.Experiment, state: train.TrainState, source: Source, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    blocks = train.predict_blocks(
        experiment.task.forward,
        [state],
        source,
        prepare=experiment.dataset.prepare,
        batch_size=batch_size,
        # This machine may have fewer devices than the training machine.
        devices=train.local_devices()[: experiment.config.run.num_devices or None],
    )
    for (logits,), labels, weights in blocks:
        yield logits, labels, weights
