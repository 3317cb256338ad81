r"""Train the settings of the map, and write a record of each.

    python -m experiments.map.run --vectors=DIR --workdir=DIR --out=NEW.json [--texts=banking77]
        [--losses=cross_entropy,focal_3]

--vectors is the folder with the folders banking77, clinc150 and newsgroups of experiments.embed.
A setting with a record in --out is not trained again, so the same command goes on where it was
stopped, from the last checkpoint. The record of cross-entropy has the temperatures that its
validation logits predict for the other losses.
"""

import pathlib
import shutil
import time
from typing import Any

import numpy as np
from absl import flags

from experiments.evaluation import trained
from experiments.map import heads
from experiments.map.settings import (
    BASELINE,
    LOSSES,
    METHODS,
    RECORDS,
    TEXTS,
    Setting,
    config_of,
    read,
    settings,
    write,
)
from experiments.running import building, cli, environment, training

ROWS = 500  # of a prediction

_VECTORS = flags.DEFINE_string("vectors", None, "Folder of the vectors.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the unfinished runs.")
_OUT = flags.DEFINE_string("out", str(RECORDS), "File of the records.")
_TEXTS = flags.DEFINE_list("texts", list(TEXTS), "Data sets of the settings.")
_LOSSES = flags.DEFINE_list("losses", [*LOSSES, *METHODS], "Losses of the settings.")


def train_setting(
    setting: Setting, vectors: str, folder: pathlib.Path
) -> tuple[dict[str, Any], int]:
    """Train all seeds of a setting; return its record and the signal that stopped it, or 0."""
    began = time.perf_counter()
    experiment = building.build(config_of(setting), data_dir=vectors)
    folders = {seed: folder / f"seed_{seed}" for seed in setting.seeds}
    for of_seed in folders.values():
        of_seed.mkdir(parents=True, exist_ok=True)
    outcomes = training.fit(experiment, folders, quiet=True)
    for outcome in outcomes:
        if outcome.stopped_by:
            return {}, outcome.stopped_by
        if outcome.failed:
            raise cli.Failed(f"{setting.name}: {outcome.failed}")
    states = [outcome.state for outcome in outcomes]
    logits, labels = {}, {}
    for part in ("validation", "test"):
        source = getattr(experiment.dataset, part)
        found = trained.predictions(experiment, states, source)
        logits[part] = np.asarray(found.logits)
        labels[f"{part}_labels"] = np.asarray(found.labels)
    record = {
        "seeds": list(setting.seeds),
        "rows": {part: of.shape[1] for part, of in logits.items()},
        "values": heads.measured(logits, labels),
        "seconds": round(time.perf_counter() - began, 1),
        "commit": environment.commit(),
    }
    if setting.loss == BASELINE:
        record["predicted"] = predictions(logits["validation"], labels["validation_labels"])
    return record, 0


def predictions(logits: np.ndarray, labels: np.ndarray) -> dict[str, list[float]]:
    """Predict T of each loss for each seed, on at most `ROWS` rows."""
    return {
        loss: heads.predicted(logits, labels, loss, ROWS)["temperature"]
        for loss in heads.PREDICTED
        if loss not in (BASELINE, *heads.SLOW)
    }


def main() -> int:
    """Train the settings that have no record."""
    if not (_VECTORS.value and _WORKDIR.value):
        raise cli.Refused("give --vectors=FOLDER of the vectors and --workdir=FOLDER of the runs.")
    for name, given, known in (
        ("texts", _TEXTS.value, TEXTS),
        ("losses", _LOSSES.value, (*LOSSES, *METHODS)),
    ):
        if unknown := sorted(set(given) - set(known)):
            raise cli.Refused(f"--{name} must be among {', '.join(known)}, got {unknown[0]}.")
    workdir, out = pathlib.Path(_WORKDIR.value), pathlib.Path(_OUT.value)
    cli.use_compilation_cache()
    records = read(out)
    wanted = [s for s in settings() if s.texts in _TEXTS.value and s.loss in _LOSSES.value]
    missing = [setting for setting in wanted if setting.name not in records]
    print(f"{len(wanted) - len(missing)} of {len(wanted)} settings have a record.", flush=True)
    for setting in missing:
        folder = workdir / setting.name
        arguments = setting, _VECTORS.value, folder
        record, signal = cli.failing(cli.refusing, train_setting, *arguments)
        if signal:
            print(f"{setting.name}: stopped; the same command resumes it.", flush=True)
            return 128 + signal
        records[setting.name] = record
        write(out, records)
        shutil.rmtree(folder)
        t, error = (np.mean(record["values"][name]) for name in ("temperature", "error"))
        print(f"{setting.name}: error {error:.3f}, T {t:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    cli.run(main)
