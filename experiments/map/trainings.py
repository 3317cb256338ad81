"""Train a setting of the map, one process at a time, and write its record."""

import pathlib
import shutil
import time
from typing import Any

import numpy as np

from calib_jax import data, train
from experiments.map import measures, records
from experiments.map.settings import OUT_OF_SCOPE, Setting, config_of
from experiments.papers.estimates import Predictions
from experiments.running import building, cli, provenance, training


def record_setting(
    setting: Setting, vectors: str, workdir: pathlib.Path, out: pathlib.Path
) -> tuple[dict[str, Any], int]:
    """Train a setting, write its record and remove its networks, which no other process uses.

    Returns:
      The record and 0; or nothing and the signal that stopped the training. The record is that of
      another process, if one wrote it meanwhile.
    """
    folder = workdir / setting.name
    folder.mkdir(parents=True, exist_ok=True)
    with train.only_one(folder):
        record, signal = records.read(out, setting), 0
        if record is None:
            record, signal = train_setting(setting, vectors, folder)
            if signal:
                return record, signal
            records.write(out, setting, record)
        # Another process, which is refused, may have just opened a lock here.
        shutil.rmtree(folder, ignore_errors=True)
    return record, signal


def train_setting(
    setting: Setting, vectors: str, folder: pathlib.Path
) -> tuple[dict[str, Any], int]:
    """Train all seeds of a setting, and return its record and the signal that stopped it, or 0."""
    began = time.perf_counter()
    config = config_of(setting)
    experiment = building.build(config, data_dir=vectors)
    folders = {seed: folder / f"seed_{seed}" for seed in setting.seeds}
    for of_seed in folders.values():
        of_seed.mkdir(parents=True, exist_ok=True)
    environment = provenance.published()
    outcomes = training.fit(
        experiment, folders, environment=environment, quiet=True, progress=False
    )
    for outcome in outcomes:
        if outcome.stopped_by:
            return {}, outcome.stopped_by
        if outcome.failed:
            raise cli.Failed(f"{setting.name}: {outcome.failed}")
    parts = {part: getattr(experiment.dataset, part) for part in ("validation", "test")}
    if name := OUT_OF_SCOPE.get(setting.texts):
        parts["outside"] = data.from_vectors(name, data_dir=vectors, texts="clinc150").test
    states = [outcome.state for outcome in outcomes]
    predicted = {
        part: train.predict_all(experiment.task.forward, states, source)
        for part, source in parts.items()
    }
    by_seed = []
    for number in range(len(states)):
        of = {
            part: Predictions(np.asarray(found.logits[number]), np.asarray(found.labels))
            for part, found in predicted.items()
        }
        by_seed.append((of["validation"], of["test"], of.get("outside")))
    record = {
        "setting": setting._asdict(),
        "seeds": list(setting.seeds),
        "rows": {part: len(source) for part, source in parts.items()},
        **measures.measure(by_seed),
        "config": records.config_key(setting),
        "data": experiment.dataset.description,
        "seconds": round(time.perf_counter() - began, 1),
        "provenance": environment,
    }
    return record, 0
