"""Records of runs: small files from which every verdict is recomputed without training.

A record holds the logits of the test and the validation set in float16, their labels, the log of
the epochs, and what the run was: config, commit, date, machine, seconds. Further measurements of a
run (`measures.py`) stand beside it. A record of another config than the entry's is refused.

    RESULTS/runs/cifar10_resnet8/cross_entropy/1.npz
    RESULTS/runs/cifar10_resnet8/cross_entropy/1_noise.npz
"""

import dataclasses
import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from calib_jax import train
from calib_jax.core import reading
from experiments import predictions
from experiments.papers import measures, runs
from experiments.papers.entry import Entry, Training
from experiments.papers.estimates import Predictions

PARTS = ("test", "validation")
AGAIN = "remove it, and run the entry again with the folder of the runs"


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained network, as a statistic gets it.

    Attributes:
      seed: its seed.
      test: logits and labels of the test set.
      validation: the same of the validation set.
      log: the rows of the epochs.
      about: config, commit, date, machine, seconds of training.
      measured: arrays of further measurements, by measure.
    """

    seed: int
    test: Predictions
    validation: Predictions
    log: list[dict[str, Any]]
    about: dict[str, Any]
    measured: Mapping[str, Mapping[str, np.ndarray]]


def path_of(folder: pathlib.Path, training: Training, seed: int, measure: str = "") -> pathlib.Path:
    """Return the file of a record, or of a further measurement."""
    name = f"{seed}_{measure}.npz" if measure else f"{seed}.npz"
    return folder / "runs" / training.config / training.label / name


def write(folder: pathlib.Path, training: Training, run: runs.Finished) -> None:
    """Write the record of a finished run."""
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS:
        values = predictions.read(str(run.folder / f"predictions_{part}.npz"))
        logits = np.asarray(values.logits, np.float32)
        # Only differences of logits matter, and float16 is finest near 0.
        shifted = logits - logits.max(axis=-1, keepdims=True)
        arrays[f"{part}_logits"] = np.maximum(shifted, np.finfo(np.float16).min).astype(np.float16)
        arrays[f"{part}_labels"] = values.labels.astype(np.min_scalar_type(logits.shape[-1]))
    rows = train.files.json_rows(run.folder / "metrics.jsonl").rows
    start = run.start
    about = {
        "config": run.config,
        "seconds": run.result["seconds"],
        "checkpoint": run.result.get("checkpoint"),
        **{key: start.get(key) for key in ("command", "commit", "date", "device", "processor")},
        "versions": start.get("versions"),
    }
    arrays["log"] = _text(rows)
    arrays["about"] = _text(about)
    save(path_of(folder, training, run.seed), arrays)


def save(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content.getvalue())
    temporary.replace(path)


def read(folder: pathlib.Path, training: Training, seed: int, entry: Entry) -> Trained:
    """Read a record; raise an error if it is absent, damaged or of another config."""
    path = path_of(folder, training, seed)
    with reading.npz(path, "a record of a run", AGAIN) as arrays:
        parts = {
            part: Predictions(
                arrays[f"{part}_logits"].astype(np.float32),
                arrays[f"{part}_labels"].astype(np.int64),
            )
            for part in PARTS
        }
        log, about = (json.loads(bytes(arrays[name])) for name in ("log", "about"))
    changed = train.differences(about["config"], runs.config_of(training), free=runs.FREE)
    if changed:
        raise ValueError(f"{path} is of another config ({'; '.join(changed[:3])}): {AGAIN}.")
    measured = {}
    for name in entry.measures:
        with reading.npz(path_of(folder, training, seed, name), "a measurement", AGAIN) as arrays:
            measured[name] = {key: arrays[key] for key in arrays.names}
    return Trained(seed, log=log, about=about, measured=measured, **parts)


def collect(
    folder: pathlib.Path, entry: Entry, runs_dir: pathlib.Path, data_dir: str | None
) -> dict[Training, list[str]]:
    """Write the records that an entry lacks from the finished runs of a folder.

    Returns:
      The missing seeds of every training, with the runs that differ only in their config.
    """
    finished = runs.finished(runs_dir)
    missing: dict[Training, list[str]] = {}
    for training in entry.runs.values():
        for seed in range(1, entry.seeds + 1):
            wanted = [
                name
                for name in ("", *entry.measures)
                if not path_of(folder, training, seed, name).is_file()
            ]
            if not wanted:
                continue
            run, others = runs.matching(training, seed, finished)
            if run is None:
                missing.setdefault(training, []).append("; ".join([f"seed {seed}", *others]))
                continue
            for name in wanted:
                if name:
                    arrays = measures.named(name)(run.folder, data_dir)
                    save(path_of(folder, training, seed, name), arrays)
                else:
                    write(folder, training, run)
    return missing


def _text(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
