"""Records of runs: small files from which every verdict is recomputed without training.

A record holds the logits of the test and the validation set in float16 with their labels, or only
columns of them, the log of the epochs, and what the run was: config, commit, date, machine,
seconds. Further measurements of a run (`measures.py`) stand beside it. A record of another config
than the entry's is refused.

    RESULTS/runs/cifar10_resnet8/cross_entropy/1.npz
    RESULTS/runs/cifar10_resnet8/cross_entropy/1_noise.npz
"""

import dataclasses
import functools
import io
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import train
from calib_jax.core.files import reading, writing
from calib_jax.train.folder import files
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import estimates
from experiments.papers.judge.estimates import Columns, Predictions, temperature_of
from experiments.papers.store import kept, measures, runs
from experiments.running import provenance

PARTS = ("test", "validation")
# What a record says about its run, with the types of the values.
ABOUT: dict[str, tuple[type, ...]] = {
    **{"config": (dict,), "seconds": (int, float)},
    **dict.fromkeys(("commit", "date", "device", "processor"), (str, type(None))),
}
AGAIN = "remove it, and run the entry again with the folder of the runs"


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained network, as a statistic gets it.

    Attributes:
      seed: its seed.
      test: logits and labels of the test set, or columns.
      validation: the same of the validation set.
      log: the rows of the epochs.
      about: config, commit, date, machine, seconds of training.
      measured: arrays of further measurements, by measure.
      block: the `Block` of `judge/blocks.py`, which imports this file; None outside a block.
    """

    seed: int
    test: Predictions | Columns
    validation: Predictions | Columns
    log: list[dict[str, Any]]
    about: dict[str, Any]
    measured: Mapping[str, Mapping[str, np.ndarray]]
    block: Any = dataclasses.field(default=None, repr=False)

    @property
    def logits(self) -> Predictions:
        """The test set with its logits."""
        return _with_logits(self.test)

    @property
    def validation_logits(self) -> Predictions:
        """The validation set with its logits."""
        return _with_logits(self.validation)

    @functools.cached_property
    def temperature(self) -> float:
        """The papers' temperature: least validation ECE on the grid 0.1, 0.2, ..., 10."""
        return temperature_of(self.validation_logits, "ece")

    @functools.cached_property
    def temperature_by_nll(self) -> float:
        """The temperature of the least validation NLL."""
        return temperature_of(self.validation_logits, "nll")

    @functools.cached_property
    def temperatures_of_resamples(self) -> np.ndarray:
        """The papers' temperature on resamples of the validation set."""
        return estimates.temperatures_of_resamples(self.validation_logits)

    @property
    def scaled(self) -> Predictions:
        """The test set after the papers' temperature."""
        return self.logits.scaled(self.temperature)

    def columns(self, measure: str, name: str) -> Columns:
        """Return measured columns of the test set, such as those of another epoch."""
        arrays = self.measured[measure]
        return unpacked({key: arrays[f"{name}_{key}"] for key in _kinds(arrays, name)})


def _with_logits(part: Predictions | Columns) -> Predictions:
    if isinstance(part, Columns):
        raise TypeError("the record has no logits: set keep='logits' in the Training.")
    return part


def packed(columns: Columns) -> dict[str, np.ndarray]:
    """Convert columns to small arrays: 1 - confidence in float16, which is fine near 0."""
    arrays = {
        "doubt": (1 - columns.confidence).astype(np.float16),
        "right": np.asarray(columns.right, bool),
    }
    for name in ("nll", "entropy"):
        column = getattr(columns, name)
        if column is not None:
            arrays[name] = column.astype(np.float16)
    return arrays


def unpacked(arrays: Mapping[str, np.ndarray]) -> Columns:
    """Convert the arrays of `packed` back."""
    wide = {name: arrays[name].astype(np.float64) for name in arrays if name != "right"}
    return Columns(1 - wide["doubt"], arrays["right"], wide.get("nll"), wide.get("entropy"))


def flat(measured: measures.Measured) -> dict[str, np.ndarray]:
    """Convert what a measure returns to small arrays."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in measured.items():
        if isinstance(value, Columns):
            arrays |= {f"{name}_{key}": column for key, column in packed(value).items()}
        else:
            arrays[name] = value
    return arrays


def _kinds(arrays: Mapping[str, np.ndarray], name: str) -> list[str]:
    known = (key for key in ("nll", "entropy") if f"{name}_{key}" in arrays)
    return ["doubt", "right", *known]


def path_of(folder: pathlib.Path, training: Training, seed: int, measure: str = "") -> pathlib.Path:
    """Return the file of a record, or of a further measurement."""
    name = f"{seed}_{measure}.npz" if measure else f"{seed}.npz"
    return folder / "runs" / training.config / training.label / name


def absent(
    folder: pathlib.Path, training: Training, measures: Sequence[str] = ()
) -> list[pathlib.Path]:
    """List the records of a training, and the further measurements, that are not there."""
    paths = [
        path_of(folder, training, seed, measure)
        for seed in training.of_seeds
        for measure in ("", *measures)
    ]
    return [path for path in paths if not path.is_file()]


def write(folder: pathlib.Path, training: Training, run: runs.Finished) -> None:
    """Write the record of a finished run."""
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS if training.keep != "none" else ():
        given = kept.labelled(run.folder, part)
        if training.keep == "columns":
            columns = packed(Columns(given.confidence, given.right))
            arrays |= {f"{part}_{name}": column for name, column in columns.items()}
            continue
        # Only differences of logits matter, and float16 is finest near 0.
        shifted = given.logits - given.logits.max(axis=-1, keepdims=True)
        arrays[f"{part}_logits"] = np.maximum(shifted, np.finfo(np.float16).min).astype(np.float16)
        arrays[f"{part}_labels"] = given.labels.astype(np.min_scalar_type(shifted.shape[-1]))
    start, rows = run.start, _log(run.folder)
    about = {
        "config": run.config,
        # Of all processes of the run; the log has the time before a resumption.
        "seconds": sum(row["seconds"] + row["evaluation_seconds"] for row in rows),
        "checkpoint": run.result.get("checkpoint"),
        "command": provenance.without_folders(start.get("command", "")),
        **{key: start.get(key) for key in ("commit", "date", "device", "processor")},
        "versions": start.get("versions"),
    }
    arrays["log"] = _text(rows)
    arrays["about"] = _text(about)
    save(path_of(folder, training, run.seed), arrays)


def _log(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Read the rows of the epochs, with the medians of the histograms of gradient norms."""
    rows = files.json_rows(folder / "metrics.jsonl").rows
    medians = {}
    for row in files.json_rows(folder / "gradient_norms.jsonl").rows:
        counts = np.asarray(row.get("training", []), np.float64)
        if counts.sum():
            below = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
            medians[row["step"]] = float(np.interp(0.5, below, np.asarray(row["edges"])))
    for row in rows:
        if row["step"] in medians:
            row["training_gradient_median"] = medians[row["step"]]
    return rows


def save(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    with writing.replacing(path) as new:
        new.write_bytes(content.getvalue())


class Arrays(dict[str, np.ndarray]):
    """The arrays of a measurement; the error for an absent one names the file."""

    def __init__(self, path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(arrays)
        self._path = path

    def __missing__(self, name: str) -> np.ndarray:
        raise LookupError(f"{self._path} has no array {name!r}: {AGAIN}.")


def read(
    folder: pathlib.Path, training: Training, seed: int, wanted: Sequence[str] = ()
) -> Trained:
    """Read a record with further measurements.

    It raises an error if the record is absent, damaged, or of another config or seed, and if a
    measurement is of another run.
    """
    path = path_of(folder, training, seed)
    with reading.npz(path, "a record of a run", AGAIN) as arrays:
        parts = {part: _part(arrays, part, training.keep) for part in PARTS}
        log = json.loads(bytes(arrays["log"]))
        if not isinstance(log, list) or not all(isinstance(row, dict) for row in log):
            raise ValueError("its log is no list of rows")
        of_run = _about(arrays)
    changed = train.differences(
        of_run["config"], runs.config_of(training), free=runs.free(training)
    )
    if changed:
        raise ValueError(f"{path} is of another config ({'; '.join(changed[:3])}): {AGAIN}.")
    recorded_seed = of_run["config"].get("seed")
    if recorded_seed != seed:
        raise ValueError(f"{path} is of seed {recorded_seed}, and not of seed {seed}: {AGAIN}.")
    measured = {
        name: _measurement(path_of(folder, training, seed, name), of_run) for name in wanted
    }
    return Trained(
        seed, parts["test"], parts["validation"], log=log, about=of_run, measured=measured
    )


def about(path: pathlib.Path) -> dict[str, Any]:
    """Read what a record says about its run."""
    with reading.npz(path, "a record of a run", AGAIN) as arrays:
        return _about(arrays)


def about_all(folder: pathlib.Path, config: str = "*") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the config, the label and the description of every recorded run."""
    for path in sorted((folder / "runs").glob(f"{config}/*/*.npz")):
        if path.stem.isdecimal():  # measurements stand beside the records
            yield path.parts[-3], path.parts[-2], about(path)


def _about(arrays: reading.Npz) -> dict[str, Any]:
    of_run = json.loads(bytes(arrays["about"]))
    check_keys(of_run, ABOUT, "'about'")
    return dict(of_run)


def check_keys(values: Any, keys: Mapping[str, tuple[type, ...]], name: str) -> None:
    """Raise an error if values are no mapping with these keys, whose values have these types."""
    for key, kinds in keys.items():
        if not isinstance(values, dict) or key not in values:
            raise ValueError(f"{name} has no {key}")
        if not isinstance(values[key], kinds):
            raise ValueError(f"the {key} in {name} is {str(values[key])[:40]!r}")


def _measurement(path: pathlib.Path, of_run: Mapping[str, Any]) -> Arrays:
    """Read a measurement, and raise an error if it is of another run than the record beside it.

    Older measurements do not name their run.
    """
    with reading.npz(path, "a measurement", AGAIN) as arrays:
        values = {name: arrays[name] for name in arrays.names}
        measured_run = json.loads(bytes(values.pop("about"))) if "about" in values else {}
        if not isinstance(measured_run, dict):
            raise ValueError("'about' is no mapping")
    expected = _run_of(of_run["config"].get("seed"), of_run)
    for key, value in measured_run.items():
        if value != expected.get(key):
            raise ValueError(
                f"{path} is of a run of {key} {value}, and the record beside it of {key}"
                f" {expected.get(key)}: {AGAIN}."
            )
    return Arrays(path, values)


def _run_of(seed: int | None, start: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a measurement says about its run."""
    return {"seed": seed, "commit": start.get("commit"), "date": start.get("date")}


def read_all(folder: pathlib.Path, entry: Entry) -> dict[str, list[Trained]]:
    """Read the records of all runs of an entry, by their names in it."""
    missing = [
        path
        for name, training in entry.runs.items()
        for path in absent(folder, training, entry.measures_of(name))
    ]
    if missing:
        others = f" (and {len(missing) - 1} more are absent)" if len(missing) > 1 else ""
        raise FileNotFoundError(
            f"there is no file {missing[0]}{others}: python -m experiments.papers"
            f" --run={entry.name} --data_dir=DIR trains what is missing."
        )
    trained = {
        name: {
            path_of(folder, training, seed): read(folder, training, seed, entry.measures_of(name))
            for seed in training.of_seeds
        }
        for name, training in entry.runs.items()
    }
    check_test_sets([item for of_seeds in trained.values() for item in of_seeds.items()])
    for of_seeds in trained.values():
        _check_seeds(list(of_seeds.items()))
    return {name: list(of_seeds.values()) for name, of_seeds in trained.items()}


def check_test_sets(trained: Sequence[tuple[pathlib.Path, Trained]]) -> None:
    """Raise an error if two records of a data set have other numbers of test examples."""
    first: dict[str, tuple[pathlib.Path, int]] = {}
    for path, run in trained:
        count = len(run.test.right)
        if not count:
            continue
        other, expected = first.setdefault(run.about["config"]["data"]["name"], (path, count))
        if count != expected:
            raise ValueError(
                f"{path} has {count:,} test examples, and {other} has {expected:,}: one of them is"
                f" not whole.\nIf it is the first, {AGAIN}."
            )


def _check_seeds(trained: Sequence[tuple[pathlib.Path, Trained]]) -> None:
    """Raise an error if two seeds of a training have the same predictions."""
    for (other, first), (path, second) in itertools.combinations(trained, 2):
        confidence = second.test.confidence
        if len(confidence) and np.array_equal(confidence, first.test.confidence):
            raise ValueError(f"{path} and {other} have the same predictions: {AGAIN}.")


def _part(arrays: reading.Npz, part: str, keep: str) -> Predictions | Columns:
    """Read the predictions of a part, of which a record with keep="none" has none."""
    of_part = [name for name in arrays.names if name.startswith(f"{part}_")]
    if not of_part and keep == "none":
        return Columns(np.zeros(0), np.zeros(0, bool))
    names = ("doubt", "right") if f"{part}_doubt" in of_part else ("logits", "labels")
    values = {name: arrays[f"{part}_{name}"] for name in names}
    first, second = values.values()
    if first.ndim != (2 if "logits" in values else 1) or first.shape[:1] != second.shape:
        raise ValueError(
            f"{part}_{names[0]} has shape {first.shape}, and {part}_{names[1]} {second.shape}"
        )
    if "doubt" in values:
        return unpacked(values)
    logits, labels = first.astype(np.float32), second.astype(np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < logits.shape[1]:
        raise ValueError(f"{part}_labels are not all in 0 to {logits.shape[1] - 1}")
    return Predictions(logits, labels)


def collect(
    folder: pathlib.Path, entry: Entry, runs_dir: pathlib.Path, data_dir: str | None
) -> dict[Training, list[str]]:
    """Write the records that an entry lacks from the finished runs of a folder.

    Returns:
      The missing seeds of every training, with the runs that differ only in their config.
    """
    finished = runs.finished(runs_dir)
    missing: dict[Training, list[str]] = {}
    for key, training in entry.runs.items():
        for seed in training.of_seeds:
            wanted = [
                name
                for name in ("", *entry.measures_of(key))
                if not path_of(folder, training, seed, name).is_file()
            ]
            if not wanted:
                continue
            run, others = runs.matching(training, seed, finished)
            if run is None:
                missing.setdefault(training, []).append("; ".join([f"seed {seed}", *others]))
                continue
            if "" not in wanted:
                _check_same_run(path_of(folder, training, seed), run)
            for name in wanted:
                if name:
                    measured = measures.named(name)(run.folder, data_dir)
                    of_run = {"about": _text(_run_of(seed, run.start))}
                    save(path_of(folder, training, seed, name), flat(measured) | of_run)
                else:
                    write(folder, training, run)
    return missing


def _check_same_run(path: pathlib.Path, run: runs.Finished) -> None:
    """Raise an error if a record is not of the run that would be measured further."""
    recorded = about(path)["date"]
    date = run.start.get("date")
    if recorded != date:
        raise ValueError(
            f"{path} is of a run of {recorded}, and {run.folder} of {date}: measurements of two"
            " runs are not mixed.\nRemove the record and what stands beside it of this seed to use"
            " this run in its place."
        )


def _text(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
