r"""Use the minutes of an accelerator: train what is worth most first, as long as it fits.

    python -m experiments.papers --scale=gpu --minutes=20 --out=DIR --runs_dir=RUNS --data_dir=DATA

The trainings are those of the papers' table on CIFAR-10, with a wide ResNet-8 and three seeds in
one program, and after them those of the claims about networks. Their schedule has 30 of the papers'
350 epochs (`scales.py`). Before the first one, `device_check.py` compares losses and metrics with
float64. The records of finished trainings, and the verdicts of every entry whose records are all
there, are written to DIR. A training that does not end in time is stopped and saved in RUNS, and
the same command resumes it.

Every training is a process of its own, and --at_once=N has N of them at the same time. This process
leaves the accelerator to them.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time
from typing import Any, NamedTuple

import jax

from calib_jax.core.files import reading
from experiments.papers import entry, scales
from experiments.papers.entries import trainings
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import blocks, verdicts
from experiments.papers.store import records, runs
from experiments.running import cli

CHECKED = "runs/device_check.json"  # verdicts are the JSON files beside this folder
# By value: the losses of the papers' tables, then other networks.
ORDER = (
    trainings.CE,
    trainings.BSCE_GRA,
    trainings.FLSD53,
    trainings.ADAFOCAL,
    trainings.FL3,
    trainings.BRIER,
    trainings.MMCE,
    trainings.DUAL_FOCAL,
    trainings.LABEL_SMOOTHING,
    trainings.LENET,
    *(training for pair in trainings.NETWORKS.values() for training in pair),
)


class Place(NamedTuple):
    """Where a session reads and writes, and how it trains.

    Attributes:
      folder: the folder of records and verdicts.
      runs_dir: the folder of the sweeps.
      data_dir: of the data sets.
      scale: gpu or tiny.
      precision: the precision of the layers.
    """

    folder: pathlib.Path
    runs_dir: pathlib.Path
    data_dir: str | None
    scale: str
    precision: str


def entries(place: Place) -> list[Entry]:
    """List the entries whose runs are all among these trainings, at the scale of the place.

    Entries with further measures are not: these need the checkpoints of all epochs.
    """
    return [
        scales.at(tested, place.scale, place.precision)
        for tested in entry.catalogue().values()
        if tested.runs and not tested.measures and set(tested.runs.values()) <= set(ORDER)
    ]


def session(place: Place, minutes: float, at_once: int = 1) -> int:
    """Check the device, train what fits, and write the verdicts; return the exit code.

    Args:
      place: where to read and write, and how to train.
      minutes: the minutes until the last training is stopped.
      at_once: trainings at the same time. Their processes share the accelerator and its memory, so
        one computes while another compiles.
    """
    ends = time.monotonic() + 60 * minutes
    # This process computes verdicts only, and must not take the memory of the accelerator.
    jax.config.update("jax_platforms", "cpu")
    device = checked_device(place.folder)
    if at_once > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / at_once:.2f}")
    missing = unfinished(place)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        results = pool.map(lambda training: _train(place, training, device, ends), missing)
        if all(list(results)):
            print("every training is done.")
    judge(place)
    return 0


def _train(place: Place, training: Training, device: str, ends: float) -> bool:
    """Train until a time of the clock if the training fits, and record it; return whether."""
    name = f"{training.config} {training.label}"
    remaining = ends - time.monotonic()
    needed = needed_seconds(place, device, training)
    if needed > remaining:
        rest = max(0.0, remaining / 60)
        print(f"{name} needs about {needed / 60:.1f} minutes, and {rest:.1f} are left.", flush=True)
        return False
    if why := runs.missing_data(runs.config_of(training)["data"]["name"], place.data_dir):
        raise cli.Refused(why)
    folder = _runs_dir(place, training)
    if not runs.train_missing([training], folder, place.data_dir, max(0.0, remaining)):
        print(f"{name}: stopped at the end of the minutes; the same command resumes.", flush=True)
        return False
    cli.refusing(collect, place, training)
    if records.absent(place.folder, training):
        raise cli.Failed(f"{name} was trained, and {folder} lacks its runs.")
    print(f"{name}: trained and recorded", flush=True)
    return True


def unfinished(place: Place) -> list[Training]:
    """List the trainings without all records, the most valuable first."""
    # At tiny size, trainings of different networks are the same one.
    scaled: dict[str, Training] = {}
    for training in (scales.on_gpu(t, place.scale, place.precision) for t in ORDER):
        scaled.setdefault(f"{training.config} {training.label}", training)
    for training in scaled.values():
        cli.refusing(collect, place, training)
    return [training for training in scaled.values() if records.absent(place.folder, training)]


def _runs_dir(place: Place, training: Training) -> pathlib.Path:
    """Return the folder of the sweep of a training: its own, since a sweep has one process."""
    return place.runs_dir / f"{training.config}-{training.label}"


def collect(place: Place, training: Training) -> None:
    """Write the records of the finished runs of a training."""
    only = Entry(claims={}, statistic={}, runs={training.label: training})
    records.collect(place.folder, only, _runs_dir(place, training), place.data_dir)


def needed_seconds(place: Place, device: str, training: Training) -> float:
    """Estimate the seconds of a training; 0 where this device has no record of its config."""
    return measured_seconds(place.folder, device).get(training.config, 0.0) * training.seeds


def measured_seconds(folder: pathlib.Path, device: str) -> dict[str, float]:
    """Return the longest measured seconds of a run on a device, by config."""
    longest: dict[str, float] = {}
    for config, _, about in records.about_all(folder):
        if about["device"] == device:
            longest[config] = max(longest.get(config, 0.0), float(about["seconds"]))
    return longest


def checked_device(folder: pathlib.Path) -> str:
    """Compare losses and metrics with float64 in a process of its own; return the device."""
    path = folder / CHECKED
    command = [sys.executable, "-m", "experiments.papers.device_check", f"--out={path.resolve()}"]
    code = subprocess.run(command, check=False, cwd=runs.CONFIGS.parent).returncode
    if code:
        raise cli.Failed("losses or metrics differ on this device: see above; nothing was trained.")
    record: dict[str, Any] = reading.json_mapping(path, "the checks of a device", "run it again")
    return str(record["provenance"]["device"])


def judge(place: Place) -> None:
    """Compute the verdicts of every entry whose records are all there."""
    possible = entries(place)
    reader = blocks.Reader(place.folder, possible)
    for tested in possible:
        if any(records.absent(place.folder, training) for training in tested.runs.values()):
            continue
        record = cli.refusing(verdicts.compute, tested, place.folder, place.scale, reader)
        verdicts.write(place.folder, record)
        for claim, part in record["claims"].items():
            print(f"{claim}: {part['state']}")
