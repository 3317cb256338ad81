r"""Train a network with any of the losses, or resume the run in the folder.

    python -m experiments.train --config=configs/digits.py --workdir=/tmp/digits
    python -m experiments.train --config=configs/digits.py:adafocal --workdir=/tmp/adafocal
    python -m experiments.train --config=configs/digits.py:focal --workdir=/tmp/focal \
        --config.num_epochs=10 --config.loss.options.gamma=5 --config.seed=2

The word after the colon is one of the losses in configs/losses. Every key of the config can be
given as --config.KEY=VALUE, and an unknown key is an error. --init_from loads the initial weights
of a released PyTorch network (resnet50.npz, resnet50.safetensors), of a BERT in a folder of Hugging
Face, or of another run (/tmp/adafocal:best_nll); the last layer is initialised anew if the number
of classes differs.
After Ctrl-C, SIGTERM, or a power cut the same command resumes the run.

--config.run.writers=tensorboard,wandb also sends every row to TensorBoard or Weights & Biases;
--profile=STEPS traces some steps with JAX's profiler, after those that compile, and prints where
the trace is.

--config.num_seeds=5 trains five seeds, one after another with the same compiled program, each in
its own folder, WORKDIR/seed_K, with results bit for bit equal to those of a single run.

On several machines the same command is one run: give --coordinator=HOST:PORT --num_processes=N
--process_id=I, with I from 0, or omit these under Slurm, Open MPI or on a TPU pod. Process 0
writes the folder; the others need the data, not the folder.

The folder contains checkpoints and, derived from them, config.json, environment.jsonl, log.txt,
metrics.jsonl and metrics.csv (one row per evaluation), loss_state.jsonl (the state of AdaFocal and
others) and, at the end, report.md and report.html with figures. --config.diagnose adds
the training statistics that the papers plot: NLL and entropy of right and of wrong predictions, the
norms of the last layer and of its gradients. Then:

    python -m experiments.evaluate --workdir=/tmp/digits
"""

import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from calib_jax.core import checks
from calib_jax.train import WRITERS, Outcome, last_table, read_rows
from experiments.running import building, cli, environment, imports, training

_CONFIG = imports.define_config("File of the config, and a loss: configs/digits.py:adafocal.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; created if it does not exist.")
flags.adopt_module_key_flags(building)  # --data_dir, --init_from
_PROCESSES = training.define_processes()
_PROFILE = flags.DEFINE_integer(
    "profile", 0, "Number of steps to trace with JAX's profiler.", lower_bound=0
)
_QUIET = flags.DEFINE_bool("quiet", False, "Print only errors; log.txt is still written.")


def main() -> int:
    """Train or resume a run."""
    if not _CONFIG.value:
        raise cli.Refused("give --config=FILE, such as --config=configs/digits.py:adafocal.")
    if _WORKDIR.value is None:
        raise cli.Refused("give --workdir=FOLDER for the run.")
    workdir = cli.refusing(training.named, _WORKDIR.value)
    config = _CONFIG.value
    config.init_from = building.INIT_FROM.value or config.init_from
    with training.begin(_PROCESSES, _same_in_all(config)):
        code, failure = _train(config, workdir)
    if failure:  # the same in every process
        raise cli.Failed(failure)
    return code


def _same_in_all(config: ConfigDict) -> dict[str, Any]:
    """Return the values that must be equal in all processes of a run."""
    fixed = cli.plain(config)
    # Keys that change the program must be equal; keys for saving and logging may differ.
    fixed["run"] = {key: fixed["run"][key] for key in ("resident_bytes", "num_devices")}
    return {"config": fixed, **{name: environment.version(name) for name in ("jax", "calib_jax")}}


def _train(config: ConfigDict, workdir: pathlib.Path) -> tuple[int, str]:
    """Train, and return the exit code and the error message, if any."""
    writers = [name for given in config.run.writers for name in str(given).split(",")]
    for name in writers:  # the flag's A,B arrives as one text
        cli.refusing(checks.one_of, "writer", name, WRITERS)
    experiment = cli.refusing(building.build, config, data_dir=building.DATA_DIR.value)
    if jax.process_index() == 0 and not _QUIET.value:
        dataset = experiment.dataset
        cli.say(f"data: {dataset.description} {dataset.num_classes:,} classes.")
    given = config_flags.get_override_values(flags.FLAGS["config"])
    for note in building.unused(config, given) if jax.process_index() == 0 else []:
        cli.say_step(f"note: {note}.")
    folders = cli.refusing(training.of_config, workdir, config)
    if jax.process_index() == 0:  # other processes need no folder
        cli.refusing(training.prepare, workdir)
    trained = training.fit(
        experiment,
        folders,
        quiet=_QUIET.value,
        writers=[WRITERS[name] for name in writers],
        profile=_PROFILE.value,
    )
    if trained[-1].stopped_by:
        return 128 + trained[-1].stopped_by, ""
    outcomes = dict(zip(folders, trained, strict=True))
    failed = {seed: outcome.failed for seed, outcome in outcomes.items() if outcome.failed}
    first = jax.process_index() == 0  # only process 0 writes
    if first:
        finished = {seed: outcome for seed, outcome in outcomes.items() if outcome.finished}
        through = {seed: folders[seed] for seed in finished}
        _report(experiment, through, workdir, _focal_notes(experiment, finished))
    if failed:
        which = f"of {len(folders)} seeds {', '.join(map(str, failed))} failed: "
        why = next(iter(failed.values()))
        return cli.FAILED, (which if len(folders) > 1 else "") + why
    if first and not _QUIET.value:
        if len(folders) == 1:
            _say_more(experiment, *folders.values(), *outcomes.values())
        else:
            from experiments.reports import run_report

            cli.say(f"\n{run_report.of_seeds(folders)}\n")
        data_dir = building.DATA_DIR.value
        more = f" --data_dir={shlex.quote(data_dir)}" if data_dir else ""
        more += " --allow_imports" * any(imports.paths_in(config))
        cli.say(f"next: python -m experiments.evaluate --workdir={shlex.quote(str(workdir))}{more}")
    return 0, ""


def _focal_notes(
    experiment: building.Experiment, outcomes: Mapping[int, Outcome]
) -> dict[int, list[str]]:
    """State for each seed of cross-entropy which focal loss would calibrate the network."""
    from experiments.evaluation.trained import predictions
    from experiments.reports import run_report

    source = experiment.dataset.validation
    if experiment.config.loss.name != "cross_entropy" or jax.process_count() > 1 or not outcomes:
        return {}
    if np.ndim(source[np.array([0])].labels) != 1:  # pixels, words or soft labels
        return {}
    states = [outcome.state for outcome in outcomes.values()]
    found = predictions(experiment, states, source)
    return {
        seed: [run_report.focal_note(logits, found.labels, found.weights)]
        for seed, logits in zip(outcomes, found.logits, strict=True)
    }


def _report(
    experiment: building.Experiment,
    folders: Mapping[int, pathlib.Path],
    workdir: pathlib.Path,
    notes: Mapping[int, list[str]],
) -> None:
    """Write the page of every finished run, and one page for all seeds."""
    from experiments.reports import run_report  # loads the figures, which the loop does not need

    described = experiment.dataset.description
    shown = tuple(experiment.config.run.show_epochs)
    for seed, folder in folders.items():
        of_seed = notes.get(seed, [])
        names = cli.refusing(run_report.write, folder, described, shown, of_seed)
        if not _QUIET.value:
            cli.say("\n".join([f"written to {folder}: {', '.join(names)}", *of_seed]))
    if experiment.config.num_seeds > 1 and folders:
        names = cli.refusing(run_report.write_seeds, workdir, folders, described)
        if not _QUIET.value:
            cli.say(f"written to {workdir}: {', '.join(names)}")


def _say_more(experiment: building.Experiment, folder: pathlib.Path, outcome: Outcome) -> None:
    from experiments.evaluation import best_checkpoints

    table = last_table(folder)
    if table:
        cli.say(f"\nthe state of the loss after its last update:\n{table}")
    lines = best_checkpoints.describe(
        read_rows(folder / "metrics.jsonl"), outcome.best, len(experiment.dataset.validation)
    )
    cli.say("\n".join(lines))


if __name__ == "__main__":
    cli.run(main)
