"""Train the seeds of an experiment in their folders, by one process or several, or resume them.

Several seeds have the folders DIR/seed_1, DIR/seed_2, ..., each with its own run. These keys of the
config may change when a run resumes, because the steps do not depend on them:

    always                          run, metrics, num_bins, evaluate_test, patience, patience_for
    best                            if the remaining metrics keep their direction
    num_epochs, schedule            if the learning rates of all steps done stay the same, and the
                                    loss does not depend on the number of epochs

So --config.num_epochs prolongs a finished run if the rate is constant or drops at milestones, and
milestones that are not reached may move. A run with any other change cannot resume.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from calib_jax import data, losses, train
from calib_jax.core.types import Progress
from experiments.running import building, cli, environment

flags.disclaim_key_flags()  # a flag defined here belongs to the binary

MEASURED = ("run", "metrics", "num_bins", "evaluate_test")
ENDING = ("patience", "patience_for")
LENGTH = ("num_epochs", "schedule")
SUBWORDS = "subwords.txt"  # translation does not need the data set


def fit(
    experiment: building.Experiment,
    folders: Mapping[int, pathlib.Path],
    *,
    quiet: bool = False,
    writers: Sequence[train.MakeWriter] = (),
    profile: int = 0,
) -> list[train.Outcome]:
    """Train one run per seed, one after another, and convert errors to the exit codes of `cli`.

    The seeds share the compiled programs. A run whose loss is not finite has an outcome with
    `failed`, and the others go on. A signal ends the loop: the last outcome has `stopped_by`.

    Args:
      experiment: the experiment.
      folders: the folder of each seed.
      quiet, writers, profile: as in `train.fit`.
    """
    devices = cli.refusing(building.devices, experiment.config)
    about = {**environment.describe(), "num_bins": experiment.config.num_bins}
    programs: train.Programs | None = None
    outcomes: list[train.Outcome] = []
    for seed, folder in folders.items():
        config = cli.plain(building.of_seed(experiment.config, seed))
        # A run that resumes restores its weights; process 0 sends its state to the others.
        goes_on = any((folder / "checkpoints").glob("[0-9]*")) or jax.process_index() > 0
        state = cli.failing(cli.refusing, experiment.state, seed, given=not goes_on)
        programs = programs or cli.failing(
            cli.refusing, train.Programs, experiment.task, experiment.plan, devices
        )
        if jax.process_index() == 0:
            cli.failing(_keep_subwords, folder, experiment.dataset.vocabulary)
        outcome = cli.failing(
            train.fit,
            folder,
            jax.device_get(state),
            experiment.task,
            dataclasses.replace(experiment.plan, seed=seed),
            config=config,
            free=free(experiment),
            same=experiment.identity(),
            environment=about,
            programs=programs,
            name=f"seed {seed}" if len(folders) > 1 else "",
            quiet=quiet,
            writers=writers,
            profile=profile,
            check=False,
        )
        outcomes.append(outcome)
        profile = 0
        if outcome.stopped_by:
            break
        if outcome.failed and len(folders) > 1 and not quiet:
            cli.say(f"seed {seed}: {outcome.failed}")
    return outcomes


# ------------------------------------------------------------------------------------------------
# The folders of seeds.


def named(workdir: str | None) -> pathlib.Path:
    """Return the path of --workdir; raise an error for a file or a folder of other programs."""
    if not (workdir or "").strip():
        raise ValueError("--workdir is empty: give --workdir=FOLDER, where the run is kept.")
    folder = pathlib.Path(str(workdir))
    try:
        is_file = not stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError:
        is_file = False
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"--workdir={workdir} cannot be used: {why}.") from error
    if is_file:
        raise NotADirectoryError(f"--workdir={workdir} is a file: choose a folder.")
    train.check_ours(folder)
    return folder


def prepare(folder: pathlib.Path) -> None:
    """Create the folder of a run or a sweep, and mark it; raise an error if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        with contextlib.suppress(train.InUse), train.only_one(folder):  # marks the folder
            pass
    except OSError as error:
        raise ValueError(
            f"--workdir={folder} cannot be written to: {error.strerror}; choose another folder."
        ) from error


def of_config(workdir: str | pathlib.Path, config: ConfigDict) -> dict[int, pathlib.Path]:
    """Return the folder of every seed of a config; a single seed uses `workdir` itself."""
    folder = pathlib.Path(workdir)
    seeds_there = there(folder)
    if (folder / "runs").is_dir():
        raise ValueError(
            f"{folder} holds a sweep: choose another folder, or resume it with experiments.sweep."
        )
    if config.num_seeds == 1:
        if seeds_there:
            first, count = min(seeds_there), max(seeds_there) - min(seeds_there) + 1
            raise ValueError(
                f"{folder} holds the seeds {', '.join(map(str, seeds_there))}: resume them with"
                f" --config.seed={first} --config.num_seeds={count}, or choose another folder."
            )
        return {config.seed: folder}
    if (folder / "checkpoints").exists():
        raise ValueError(
            f"{folder} holds a run of one seed: choose another folder for {config.num_seeds}."
        )
    seeds = range(config.seed, config.seed + config.num_seeds)
    return {seed: folder / f"seed_{seed}" for seed in seeds}


def there(workdir: str | pathlib.Path) -> dict[int, pathlib.Path]:
    """Find the seed folders in a folder; the folder of a single run has none."""
    folders = {
        int(match[1]): path
        for path in pathlib.Path(workdir).glob("seed_*")
        if path.is_dir() and (match := re.fullmatch(r"seed_(\d+)", path.name))
    }
    return dict(sorted(folders.items()))


# ------------------------------------------------------------------------------------------------
# The keys that may change.


def free(experiment: building.Experiment) -> Callable[..., Collection[str]]:
    """Build the function that returns the keys that may change, for `train.fit`."""
    epoch_steps = experiment.epoch_steps

    def keys(before: dict[str, Any], now: dict[str, Any], step: int) -> list[str]:
        chosen = [*MEASURED, *ENDING]
        if _same_directions(before["best"], now["best"]):
            chosen.append("best")
        if _same_steps(experiment, before, now, step, epoch_steps):
            chosen += LENGTH
        return chosen

    return keys


def _same_directions(before: dict[str, str], now: dict[str, str]) -> bool:
    return all(before[name] == now[name] for name in before.keys() & now.keys())


def _same_steps(
    experiment: building.Experiment,
    before: dict[str, Any],
    now: dict[str, Any],
    step: int,
    epoch_steps: int,
) -> bool:
    """Check that the steps done would be the same under another length and schedule."""
    if all(before[key] == now[key] for key in LENGTH):
        return True
    objective = experiment.task.objective
    if before["num_epochs"] != now["num_epochs"]:
        if now["num_epochs"] * epoch_steps < step:
            return False
        if depends_on_length(objective, experiment.dataset.num_classes):
            return False
        # A run is evaluated at its end, and this evaluation may update the loss state.
        every = now["eval_every_steps"] or epoch_steps
        if objective.clock == "validation" and step % every:
            return False
    done = np.arange(step)
    first, second = (
        np.asarray(building.learning_rate(ConfigDict(config), epoch_steps)(done))
        for config in (before, now)
    )
    return bool(np.all(first == second))


def depends_on_length(objective: losses.Objective, num_classes: int) -> bool:
    """Check by tracing whether the updates of an objective use the number of epochs."""
    if objective.clock == "never":
        return False

    def updated(num_epochs: Any) -> Any:
        batch = jnp.zeros((2, num_classes)), jnp.zeros(2, int), jnp.ones(2)
        state = objective.init(num_classes, np.ones(num_classes))
        stat = objective.evidence(state, *batch)
        return objective.update(state, stat, Progress(1, 1, num_epochs))

    traced = jax.make_jaxpr(updated)(10)
    (length,) = traced.jaxpr.invars
    return any(length is used for equation in traced.jaxpr.eqns for used in equation.invars)


# ------------------------------------------------------------------------------------------------
# The subwords of a translation.


def _keep_subwords(folder: pathlib.Path, vocabulary: Any) -> None:
    """Save the subwords of a translation in the folder of its run, once it is ours."""
    if not isinstance(vocabulary, data.Subwords):
        return
    train.check_ours(folder)
    with train.only_one(folder):
        if (folder / SUBWORDS).exists():
            check_subwords(folder, vocabulary)
        else:
            vocabulary.write(folder / SUBWORDS)


def check_subwords(folder: pathlib.Path, vocabulary: Any) -> None:
    """Raise an error if the folder of a run has other subwords than the data set."""
    if not isinstance(vocabulary, data.Subwords) or not (folder / SUBWORDS).exists():
        return
    if data.Subwords.read(folder / SUBWORDS) != vocabulary:
        raise ValueError(
            f"{folder / SUBWORDS} holds other subwords than the data set: it is from another run,"
            " or the data have changed.\nChoose another folder, or give the data set this file by"
            " --config.data.options.subwords."
        )


def read_subwords(folder: pathlib.Path, num_classes: int) -> data.Subwords:
    """Read the subwords of a run; their number must be the network's `num_classes`."""
    if not (folder / SUBWORDS).exists():
        raise ValueError(f"{folder} has no {SUBWORDS}: it holds no run of a translation.")
    subwords = data.Subwords.read(folder / SUBWORDS)
    if len(subwords) != num_classes:
        raise ValueError(
            f"{folder / SUBWORDS} has {len(subwords):,} subwords and the network {num_classes:,}:"
            " the file is of another run."
        )
    return subwords


# ------------------------------------------------------------------------------------------------
# Several processes. JAX monitors them: when one is killed or stops, JAX ends the others, by an
# error from a collective or by the heartbeat, which aborts from C++. An absent coordinator or
# process aborts after the time limit, too.

_TIME_LIMITS: dict[str, Any] = {
    "initialization_timeout": 60,
    "heartbeat_timeout_seconds": 40,  # JAX detects a killed or stopped process within this time
    "shutdown_timeout_seconds": 600,  # at the end all wait for process 0, which writes a report
}


def define_processes() -> list[flags.FlagHolder[Any]]:
    """Define --coordinator, --num_processes and --process_id, for `begin`."""
    coordinator = flags.DEFINE_string(
        "coordinator",
        None,
        "HOST:PORT of process 0 of a run in several processes, the same in all: an address of its"
        " machine that the others reach, and any free port there. Several on one machine with GPUs:"
        " give each its own by CUDA_VISIBLE_DEVICES.",
    )
    count = flags.DEFINE_integer(
        "num_processes", None, "How many processes the run has, the same in all; 1 is no such run."
    )
    process = flags.DEFINE_integer(
        "process_id", None, "Index of this process: 0, 1, ... below --num_processes."
    )
    return [coordinator, count, process]


@contextlib.contextmanager
def begin(holders: Sequence[flags.FlagHolder[Any]], same: Any) -> Iterator[None]:
    """Join a run if flags or a cluster request it, before JAX initialises the devices.

    At the end of the body the processes wait for one another. After an error this process ends
    without waiting, and JAX ends the others.

    Args:
      holders: the flags of `define_processes`.
      same: JSON that must be equal in all processes, such as the config.
    """
    values = {flag.name: flag.value for flag in holders}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    missing = " and ".join(f"--{name}" for name, value in values.items() if value is None)
    if given == ["--num_processes=1"] or not (given or _is_cluster()):
        yield
        return
    if given and missing:
        raise cli.Refused(f"{' '.join(given)} without {missing}: give all three, or none.")
    coordinator, count, process = values.values()
    if given and not 0 <= process < count:
        raise cli.Refused(
            f"--process_id={process} must be from 0 to {count - 1} with --num_processes={count}."
        )
    # Without this JAX would handle SIGTERM as preemption; the training loop handles it instead.
    jax.config.update("jax_enable_preemption_service", False)
    names = ("coordinator_address", "num_processes", "process_id")
    options = dict(zip(names, values.values(), strict=True)) if given else {}
    if given:  # gRPC would use a web proxy even to reach this machine
        host = coordinator.rpartition(":")[0].strip("[]")
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
    variables = os.environ
    tasks = variables.get("SLURM_STEP_NUM_TASKS") or variables.get("SLURM_NTASKS") or "1"
    slurm = tasks != "1" and "SLURM_PROCID" in variables
    mpi = variables.get("OMPI_COMM_WORLD_SIZE", "1") != "1"
    return slurm or mpi or "," in variables.get("TPU_WORKER_HOSTNAMES", "")
