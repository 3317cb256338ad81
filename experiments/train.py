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

The folder gets config.json, environment.jsonl, log.txt, metrics.jsonl and metrics.csv (one row an
evaluation), loss_state.jsonl (what AdaFocal and others learn), checkpoints and, at the end,
report.md with pictures. --config.diagnose adds to them what the papers plot of a training: NLL and
entropy of right and of wrong answers, the norms of the last layer and of its gradients. Then:

    python -m experiments.evaluate --workdir=/tmp/digits
"""

import pathlib
import shlex

from absl import flags
from ml_collections import config_flags

from calib_jax import train
from experiments import building, cli, provenance, run_report

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "File of the config, and a loss: configs/digits.py:adafocal."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; made if it is not there.")
flags.adopt_module_key_flags(building)  # --data_dir, --init_from
_QUIET = flags.DEFINE_bool("quiet", False, "Say nothing but errors; the files say all.")


def start(experiment: building.Experiment, workdir: str, *, quiet: bool = False) -> train.Outcome:
    """Train an experiment in a folder, or go on with it."""
    config = experiment.config
    devices = cli.refusing(building.devices, config)
    outcome: train.Outcome = cli.failing(
        train.fit,
        workdir,
        cli.refusing(experiment.beginning, workdir),
        experiment.task,
        experiment.plan,
        config=cli.plain(config),
        free=["run"],
        environment=provenance.describe(),
        devices=devices,
        quiet=quiet,
        tensorboard=config.run.tensorboard,
    )
    return outcome


def main() -> int:
    """Train."""
    if not _CONFIG.value:
        raise cli.Refused("give --config=FILE, such as --config=configs/digits.py:adafocal.")
    if not _WORKDIR.value:
        raise cli.Refused("give --workdir=FOLDER, where the run is kept.")
    config = _CONFIG.value
    config.init_from = building.INIT_FROM.value or config.init_from
    experiment = cli.refusing(building.build, config, data_dir=building.DATA_DIR.value)
    outcome = start(experiment, _WORKDIR.value, quiet=_QUIET.value)
    if outcome.stopped_by is not None and not outcome.finished:
        return 128 + outcome.stopped_by
    folder, described = pathlib.Path(_WORKDIR.value), experiment.dataset.description
    names = cli.refusing(run_report.write, folder, described, tuple(config.run.show_epochs))
    if not _QUIET.value:
        _say_more(outcome)
        print(f"written to {folder}: {', '.join(names)}")
        place = building.DATA_DIR.value
        there = f" --data_dir={shlex.quote(place)}" if place else ""
        print(f"next: python -m experiments.evaluate --workdir={shlex.quote(str(folder))}{there}")
    return 0


def _say_more(outcome: train.Outcome) -> None:
    table = train.last_table(_WORKDIR.value or "")
    if table:
        print(f"\nwhat the loss learned, after its last update:\n{table}")
    for name, best in outcome.best.items():
        print(f"best {name} {best['value']:.4f} at epoch {best['epoch']:g}: best_{name}")


if __name__ == "__main__":
    cli.run(main)
