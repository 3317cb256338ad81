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

import contextlib
import json
import os
import pathlib
import re
import shlex
import sys
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils
from ml_collections import ConfigDict, config_flags

from calib_jax import train
from calib_jax.core import checks
from experiments.running import building, cli, imports, provenance, training

_CONFIG = imports.define_config("File of the config, and a loss: configs/digits.py:adafocal.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; created if it does not exist.")
flags.adopt_module_key_flags(building)  # --data_dir, --init_from
_PROFILE = flags.DEFINE_integer(
    "profile", 0, "Number of steps to trace with JAX's profiler.", lower_bound=0
)
_QUIET = flags.DEFINE_bool("quiet", False, "Print only errors; log.txt is still written.")
_COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "HOST:PORT of process 0 of a run in several processes, the same in all: an address of its"
    " machine that the others reach, and any free port there. Several on one machine with GPUs:"
    " give each its own by CUDA_VISIBLE_DEVICES.",
)
_COUNT = flags.DEFINE_integer(
    "num_processes", None, "How many processes the run has, the same in all; 1 is no such run."
)
_PROCESS = flags.DEFINE_integer(
    "process_id", None, "Index of this process: 0, 1, ... below --num_processes."
)

_TIME_LIMITS: dict[str, Any] = {
    "initialization_timeout": 60,
    "heartbeat_timeout_seconds": 40,  # JAX detects a killed or stopped process within this time
    "shutdown_timeout_seconds": 600,  # at the end all wait for process 0, which writes a report
}


def main() -> int:
    """Train or resume a run."""
    if not _CONFIG.value:
        raise cli.Refused("give --config=FILE, such as --config=configs/digits.py:adafocal.")
    if _WORKDIR.value is None:
        raise cli.Refused("give --workdir=FOLDER for the run.")
    workdir = cli.refusing(training.named, _WORKDIR.value)
    config = _CONFIG.value
    config.init_from = building.INIT_FROM.value or config.init_from
    with begin(_same_in_all(config)):
        code, failure = _train(config, workdir)
    if failure:  # the same in every process
        raise cli.Failed(failure)
    return code


def _same_in_all(config: ConfigDict) -> dict[str, Any]:
    """Return the values that must be equal in all processes of a run."""
    fixed = cli.plain(config)
    # Keys that change the program must be equal; keys for saving and logging may differ.
    fixed["run"] = {key: fixed["run"][key] for key in ("resident_bytes", "num_devices")}
    return {"config": fixed, **{name: provenance.version(name) for name in ("jax", "calib_jax")}}


def _train(config: ConfigDict, workdir: pathlib.Path) -> tuple[int, str]:
    """Train, and return the exit code and the error message, if any."""
    writers = [name for given in config.run.writers for name in str(given).split(",")]
    for name in writers:  # the flag's A,B arrives as one text
        cli.refusing(checks.one_of, "writer", name, train.WRITERS)
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
        writers=[train.WRITERS[name] for name in writers],
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
    experiment: building.Experiment, outcomes: Mapping[int, train.Outcome]
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
        seed: [run_report.focal_note(logits, found.labels)]
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


def _say_more(
    experiment: building.Experiment, folder: pathlib.Path, outcome: train.Outcome
) -> None:
    from experiments.evaluation import best_checkpoints

    table = train.last_table(folder)
    if table:
        cli.say(f"\nthe state of the loss after its last update:\n{table}")
    lines = best_checkpoints.describe(
        train.read_rows(folder / "metrics.jsonl"), outcome.best, len(experiment.dataset.validation)
    )
    cli.say("\n".join(lines))


# ------------------------------------------------------------------------------------------------
# Several processes. JAX monitors them: when one is killed or stops, JAX ends the others, by an
# error from a collective or by the heartbeat, which aborts from C++. An absent coordinator or
# process aborts after the time limit, too.


@contextlib.contextmanager
def begin(same: Any) -> Iterator[None]:
    """Join a run if flags or a cluster request it, before JAX initialises the devices.

    At the end of the body the processes wait for one another. After an error this process ends
    without waiting, and JAX ends the others.

    Args:
      same: JSON that must be equal in all processes, such as the config.
    """
    values = {flag.name: flag.value for flag in (_COORDINATOR, _COUNT, _PROCESS)}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    missing = " and ".join(f"--{name}" for name, value in values.items() if value is None)
    if given == ["--num_processes=1"] or not (given or _is_cluster()):
        yield
        return
    if given and missing:
        raise cli.Refused(f"{' '.join(given)} without {missing}: give all three, or none.")
    count, process = _COUNT.value or 0, _PROCESS.value or 0
    if given and not 0 <= process < count:
        raise cli.Refused(
            f"--process_id={process} must be from 0 to {count - 1} with --num_processes={count}."
        )
    # Without this JAX would handle SIGTERM as preemption; the training loop handles it instead.
    jax.config.update("jax_enable_preemption_service", False)
    names = ("coordinator_address", "num_processes", "process_id")
    options: dict[str, Any] = dict(zip(names, values.values(), strict=True)) if given else {}
    if given:  # gRPC would use a web proxy even to reach this machine
        host = str(_COORDINATOR.value).rpartition(":")[0].strip("[]")
        os.environ["no_proxy"] = ",".join(filter(None, (os.environ.get("no_proxy"), host)))
    try:
        jax.distributed.initialize(**options, **_TIME_LIMITS)
    except (ValueError, RuntimeError) as error:
        raise cli.Failed(
            f"JAX could not start the processes: {cli.sentence(error)}; give --coordinator,"
            " --num_processes and --process_id, the same command in all."
        ) from error
    try:
        digest = zlib.crc32(json.dumps(same, sort_keys=True).encode())
        digests = multihost_utils.process_allgather(np.uint32(digest))
        if len({*digests.tolist()}) > 1:
            raise cli.Refused(
                "the processes have different configs or versions: start all with the same command."
            )
        yield
    except BaseException as error:
        # JAX's exit handler would wait for the other processes, so it must not run.
        code = cli.REFUSED if isinstance(error, cli.Refused) else cli.FAILED
        message = str(error) or type(error).__name__
        if re.search(r"Gloo|NCCL|coordination service", message):
            message = (
                f"another process has ended or cannot be reached ({cli.sentence(error)}): the same"
                " command in all processes goes on from the last checkpoint."
            )
        elif not isinstance(error, cli.Refused | cli.Failed | KeyboardInterrupt):
            raise
        print(f"error: {cli.printable(message)}", file=sys.stderr, flush=True)
        os._exit(128 + 2 if isinstance(error, KeyboardInterrupt) else code)
    jax.distributed.shutdown()


def _is_cluster() -> bool:
    """Check whether a launcher that JAX detects has started several processes."""
    environment = os.environ
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or "1"
    slurm = tasks != "1" and "SLURM_PROCID" in environment
    mpi = environment.get("OMPI_COMM_WORLD_SIZE", "1") != "1"
    return slurm or mpi or "," in environment.get("TPU_WORKER_HOSTNAMES", "")


if __name__ == "__main__":
    cli.run(main)
