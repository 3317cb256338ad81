r"""Train the settings of the map, and write a record of each.

    python -m experiments.map.run --vectors=DIR --workdir=DIR [--records=FOLDER] [--texts=banking77]
        [--part=conditions]

--vectors is the folder with the folders banking77, clinc150, clinc150_out and newsgroups of
experiments.embed. All seeds of a setting are trained in one program. A setting with a record is
not trained again, and a stopped command resumes from the last checkpoint. The checkpoints of a
setting are removed once its record is written. --part chooses the twelve losses along weight decay
(map), the other training sizes, label noise and widths (conditions), or the other losses (methods).
"""

import pathlib
import shutil
import time
from typing import Any

import numpy as np
from absl import flags

from calib_jax import data, train
from calib_jax.train.folder.lock import only_one
from experiments.map import measures, records, statistics
from experiments.map.settings import OUT_OF_SCOPE, PARTS, TEXTS, Setting, config_of, settings
from experiments.papers.judge.estimates import Predictions
from experiments.running import building, cli, provenance, training

flags.adopt_module_key_flags(records)  # --records
_VECTORS = flags.DEFINE_string("vectors", None, "Folder of the vectors.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the unfinished runs.")
_TEXTS = flags.DEFINE_list("texts", list(TEXTS), "Data sets of the settings.")
_PART = flags.DEFINE_enum("part", "map", PARTS, "Part of the settings.")


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
    with only_one(folder):
        record, signal = records.read(out, setting), 0
        if record is None:
            record, signal = train_setting(setting, vectors, folder)
            if signal:
                return record, signal
            records.write(out, setting, record)
        # Another process, which is refused, may have just opened a lock here.
        shutil.rmtree(folder, ignore_errors=True)
    return record, signal


def chosen(part: str, folder: pathlib.Path) -> list[Setting]:
    """List the settings of a part; the records of the map choose two losses of the conditions."""
    if part != "conditions":
        return list(settings(part))
    best = statistics.two_best(records.read_all(folder, settings()))
    if not best:
        print(
            "The conditions train cross-entropy and focal loss. Two more losses are chosen once"
            f" the map has all records of {' and '.join(statistics.MADE_ON)}: repeat the command"
            " then.",
            flush=True,
        )
    return list(settings(part, best=best))


def main() -> int:
    """Train the settings that have no record."""
    if not (_VECTORS.value and _WORKDIR.value):
        raise cli.Refused("give --vectors=FOLDER of the vectors and --workdir=FOLDER of the runs.")
    if unknown := sorted(set(_TEXTS.value) - set(TEXTS)):
        raise cli.Refused(f"--texts must be among {', '.join(TEXTS)}, got {', '.join(unknown)}.")
    workdir, out = pathlib.Path(_WORKDIR.value), pathlib.Path(records.IN.value)
    cli.use_compilation_cache(workdir / ".compiled")
    of_part = cli.refusing(chosen, _PART.value, out)
    wanted = [setting for setting in of_part if setting.texts in _TEXTS.value]
    missing = [setting for setting in wanted if cli.refusing(records.read, out, setting) is None]
    print(f"{len(wanted) - len(missing)} of {len(wanted)} settings have a record.", flush=True)
    for number, setting in enumerate(missing, start=1):
        arguments = setting, _VECTORS.value, workdir, out
        record, signal = cli.failing(cli.refusing, record_setting, *arguments)
        if signal:
            print(f"{setting.name}: stopped; the same command resumes it.", flush=True)
            return 128 + signal
        means = {name: float(np.mean(column)) for name, column in record["values"].items()}
        print(
            f"{number}/{len(missing)}  {setting.name}: error {means['error']:.3f}  ECE"
            f" {means['ece_before']:.3f}  T {means['temperature']:.2f} | {record['seconds']:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    cli.run(main)
