r"""Train a network with any of the losses, or go on with what stands in the folder.

    python -m experiments.train --config=configs/digits.py --workdir=/tmp/digits
    python -m experiments.train --config=configs/digits.py:adafocal --workdir=/tmp/adafocal
    python -m experiments.train --config=configs/digits.py:focal --workdir=/tmp/focal \
        --config.num_epochs=10 --config.loss.options.gamma=5 --config.seed=2

The word after the colon is one of the losses in configs/losses. Every key of the config can be
given as --config.KEY=VALUE, and one that does not exist is refused. --init_from begins with the
weights of a released PyTorch network (resnet50.npz, resnet50.safetensors) or of another run
(/tmp/adafocal:best_nll); the last layer begins anew where the number of classes is another.
After Ctrl-C, SIGTERM, or a power cut the same command goes on where it was.

--config.num_seeds=5 trains five seeds in one program, each in its own folder, WORKDIR/seed_K, bit
for bit as it would be trained alone; --config.run.over=vmap trains them side by side, which is
faster where one network does not fill a GPU, and --config.run.over=devices gives every device
seeds of its own.

On several machines the same command is one run: with --coordinator=HOST:PORT --num_processes=N
--process_id=I, I from 0 on, or under Slurm, Open MPI or on a TPU pod without these. Process 0
writes the folder; the others need the data, not the folder.

The folder gets config.json, environment.jsonl, log.txt, metrics.jsonl and metrics.csv (one row an
evaluation), loss_state.jsonl (what AdaFocal and others learn), checkpoints and, at the end,
report.md with pictures. --config.diagnose adds to them what the papers plot of a training: NLL and
entropy of right and of wrong answers, the norms of the last layer and of its gradients. Then:

    python -m experiments.evaluate --workdir=/tmp/digits
"""

import hashlib
import json
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from calib_jax import train
from experiments import building, cli, processes, provenance, run_report, seed_folders

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "File of the config, and a loss: configs/digits.py:adafocal."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; made if it is not there.")
flags.adopt_module_key_flags(building)  # --data_dir, --init_from
flags.adopt_module_key_flags(processes)  # --coordinator, --num_processes, --process_id
_QUIET = flags.DEFINE_bool("quiet", False, "Say nothing but errors; the files say all.")


def start(
    experiment: building.Experiment,
    folders: Mapping[int, pathlib.Path],
    *,
    quiet: bool = False,
) -> list[train.Outcome]:
    """Train the seeds of an experiment in their folders, or go on with them."""
    config = experiment.config
    devices = cli.refusing(building.devices, config)
    runs = cli.failing(cli.refusing, experiment.runs, folders)
    outcomes: list[train.Outcome] = cli.failing(
        _fit_all,
        runs,
        experiment.task,
        experiment.plan,
        free=["run"],
        environment=provenance.describe(),
        devices=devices,
        over=config.run.over,
        quiet=quiet,
        tensorboard=config.run.tensorboard,
    )
    return outcomes


def _fit_all(*args: Any, **options: Any) -> list[train.Outcome]:
    """Train; a folder of another config, or one that is in use, is the user's to change."""
    try:
        return train.fit_all(*args, **options)
    except (train.AnotherConfig, train.InUse) as error:
        raise cli.Refused(cli.sentence(error)) from error


def main() -> int:
    """Train."""
    if not _CONFIG.value:
        raise cli.Refused("give --config=FILE, such as --config=configs/digits.py:adafocal.")
    if _WORKDIR.value is None:
        raise cli.Refused("give --workdir=FOLDER, where the run is kept.")
    workdir = cli.refusing(seed_folders.named, _WORKDIR.value)
    config = _CONFIG.value
    config.init_from = building.INIT_FROM.value or config.init_from
    with processes.begin(_same_in_all(config)):
        code, failure = _train(config, workdir)
    if failure:  # which all processes have found, and none of them tells another
        raise cli.Failed(failure)
    return code


def _same_in_all(config: ConfigDict) -> dict[str, str]:
    """Say what several processes must have in common to be one run."""
    fixed = cli.plain(config)
    # What decides on the program has to be the same; where and how often things are kept, not.
    fixed["run"] = {key: fixed["run"][key] for key in ("over", "resident_bytes", "num_devices")}
    digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:12]
    versions = {name: provenance.version(name) for name in ("jax", "calib_jax")}
    return {"the digest of the config": digest, **versions}


def _train(config: ConfigDict, workdir: pathlib.Path) -> tuple[int, str]:
    """Give the exit code, and what went wrong in the end."""
    experiment = cli.refusing(building.build, config, data_dir=building.DATA_DIR.value)
    cli.failing(cli.refusing, experiment.check_memory, config.num_seeds)
    folders = cli.refusing(seed_folders.of_config, workdir, config)
    if jax.process_index() == 0:  # the others need not have the folder
        cli.refusing(seed_folders.prepare, workdir)
    outcomes = dict(zip(folders, start(experiment, folders, quiet=_QUIET.value), strict=True))
    stopped = [one.stopped_by for one in outcomes.values() if one.stopped_by and not one.finished]
    if stopped:
        return 128 + stopped[0], ""
    failed = {seed: one.failed for seed, one in outcomes.items() if one.failed}
    first = jax.process_index() == 0  # it alone writes
    if first:
        through = {seed: folders[seed] for seed, one in outcomes.items() if one.finished}
        _report(experiment, through, workdir)
    if failed:
        which = f"of {len(folders)} seeds {', '.join(map(str, failed))} failed: "
        why = next(iter(failed.values()))
        return cli.FAILED, (which if len(folders) > 1 else "") + why
    if first and not _QUIET.value:
        if len(folders) == 1:
            _say_more(*folders.values(), *outcomes.values())
        else:
            print(f"\n{run_report.of_seeds(folders)}\n")
        place = building.DATA_DIR.value
        there = f" --data_dir={shlex.quote(place)}" if place else ""
        print(f"next: python -m experiments.evaluate --workdir={shlex.quote(str(workdir))}{there}")
    return 0, ""


def _report(
    experiment: building.Experiment, folders: Mapping[int, pathlib.Path], workdir: pathlib.Path
) -> None:
    """Write the page of every run that is through, and one of all."""
    described = experiment.dataset.description
    shown = tuple(experiment.config.run.show_epochs)
    for folder in folders.values():
        names = cli.refusing(run_report.write, folder, described, shown)
        if not _QUIET.value:
            print(f"written to {folder}: {', '.join(names)}")
    if experiment.config.num_seeds > 1 and folders:
        names = cli.refusing(run_report.write_seeds, workdir, folders, described)
        if not _QUIET.value:
            print(f"written to {workdir}: {', '.join(names)}")


def _say_more(folder: pathlib.Path, outcome: train.Outcome) -> None:
    table = train.last_table(folder)
    if table:
        print(f"\nwhat the loss learned, after its last update:\n{table}")
    for name, best in outcome.best.items():
        print(f"best {name} {best['value']:.4f} at epoch {best['epoch']:g}: best_{name}")


if __name__ == "__main__":
    cli.run(main)
