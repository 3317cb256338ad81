"""Start or resume runs: validate them, lock their folders, open their records, and train."""

from __future__ import annotations

import contextlib
import json
import signal
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calib_jax.core.inputs import checks
from calib_jax.train.devices import memory, parallel
from calib_jax.train.devices.parallel import Devices
from calib_jax.train.devices.processes import Processes
from calib_jax.train.feeds.ordering import steps_per_epoch
from calib_jax.train.folder import source_identity
from calib_jax.train.folder.changes import Free
from calib_jax.train.folder.files import writing
from calib_jax.train.folder.lock import Claim, only_one
from calib_jax.train.folder.record import Record
from calib_jax.train.folder.writers import MakeWriter
from calib_jax.train.loop import evaluator
from calib_jax.train.loop.arrangement import Arrangement
from calib_jax.train.loop.console import Console
from calib_jax.train.loop.interruption import recorded_signals
from calib_jax.train.loop.loop import Loop
from calib_jax.train.loop.plan import Outcome, Plan, Run, Task, check_runs
from calib_jax.train.loop.profiling import Profile
from calib_jax.train.loop.timetable import Timetable
from calib_jax.train.optim.optimizers import options_of
from calib_jax.train.step.state import TrainState


class NonFinite(ArithmeticError):
    """Raised when the loss, its gradient or the state becomes NaN or infinite."""


def fit(
    folder: Path | str,
    state: TrainState,
    task: Task,
    plan: Plan,
    *,
    config: Mapping[str, Any] | None = None,
    free: Free = (),
    environment: Mapping[str, Any] | None = None,
    devices: Devices | None = None,
    over: str = "map",
    quiet: bool = False,
    progress: bool = True,
    writers: Sequence[MakeWriter] = (),
    profile: int = 0,
) -> Outcome:
    """Train one run, or resume it from the checkpoints in its folder.

    Ctrl-C and SIGTERM save the state first, and then end the calling program as usual. The same
    call resumes the run. Without `config`, a folder of another loss, seed, batch size or optimizer,
    or of other training data, raises `AnotherConfig`. Options of the optimizer that its functions
    compute are not compared. To change options between two calls, give `config`.

    Args:
      folder: the folder for checkpoints and logs; created if it does not exist.
      state: the initial state, from `create`.
      task: the network, loss, optimizer, metrics and data.
      plan: the length of training, and the intervals of evaluations and checkpoints.
      config: JSON that identifies the run; a folder with another config raises.
      free, environment, devices, over, quiet, progress, writers, profile: as in `fit_all`.
    """
    run = Run(folder, state, plan.seed, config or {})
    (outcome,) = fit_all(
        [run],
        task,
        plan,
        free=free,
        environment=environment,
        devices=devices,
        over=over,
        quiet=quiet,
        progress=progress,
        writers=writers,
        profile=profile,
    )
    if outcome.failed:
        raise NonFinite(outcome.failed)
    if outcome.stopped_by and not outcome.finished:
        if outcome.stopped_by == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + outcome.stopped_by)
    return outcome


def fit_all(
    runs: Sequence[Run],
    task: Task,
    plan: Plan,
    *,
    free: Free = (),
    environment: Mapping[str, Any] | None = None,
    devices: Devices | None = None,
    over: str = "map",
    quiet: bool = False,
    progress: bool = True,
    writers: Sequence[MakeWriter] = (),
    profile: int = 0,
) -> list[Outcome]:
    """Train several runs in one program, or resume them from the checkpoints in their folders.

    Each run has its own folder, in the same format as a single run, and its own seed, loss state,
    log, checkpoints and patience. A run whose loss is not finite is frozen and reported; the other
    runs continue.

    Args:
      runs: the runs, with the values specific to each.
      task: the network, loss, optimizer, metrics and data.
      plan: the length of training, and the intervals of evaluations and checkpoints; `plan.seed` is
        not used.
      free: config keys that may change when a run resumes, since the steps done do not depend on
        them; or a function of the two configs and the steps done that returns these keys.
      environment: JSON about the machine and the versions; logged at each start of the runs.
      devices: the devices; all devices of all processes by default.
      over: "map" trains one run after another, bitwise equal to each alone; "vmap" batches the runs
        in every operation; "devices" trains separate runs on each device.
      quiet: print nothing; log.txt is still written.
      progress: whether to show a progress bar on a terminal.
      writers: functions that open receivers of the logged rows, such as `train.tensorboard` and
        `train.wandb`.
      profile: the number of steps to trace with the JAX profiler, after the steps that compile; the
        trace is in the folder `profile` of the first run.
    """
    check_runs(runs, task, plan)
    checks.at_least("profile", profile, 0)
    devices = parallel.all_devices() if devices is None else devices
    arrangement = Arrangement(devices, len(runs), over)
    processes = Processes(devices)
    if processes.number > max(1, len(task.train)):
        raise ValueError(
            f"{processes.number} processes cannot share {len(task.train)} examples: start at most"
            " as many as there are examples."
        )
    memory.check_states(runs[0].state, len(runs), devices, over=over)
    evaluator.check_memory(task, len(runs))
    first_epoch = task.examples_of(runs[0].seed, 0)
    epoch_steps = steps_per_epoch(len(first_epoch), plan.batch_size, drop_last=plan.drop_last)
    timetable = Timetable(plan, epoch_steps)
    facts = _facts(task, plan, arrangement, first_epoch)
    records: list[Record] = []
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(recorded_signals())
        console = Console(
            len(runs) * timetable.total_steps, progress=progress, quiet=quiet or not processes.leads
        )
        stack.callback(console.close)

        same: dict[str, Any] = {}
        if not all(run.config for run in runs):  # a run with a config has its options there
            same = {
                "loss": task.objective.name,
                "training_examples": len(task.train),
                "training_data": source_identity.of_source(task.train)._asdict(),
                "optimizer": options_of(task.tx),
            }

        def open_records() -> bytes:
            for run in runs:
                claim = stack.enter_context(_claimed(Path(run.folder))) if processes.leads else None
                record = Record(
                    run,
                    plan,
                    free,
                    processes,
                    console,
                    same={} if run.config else same,
                    claim=claim,
                    writers=writers,
                )
                stack.callback(record.close)
                records.append(record)
            return facts

        if processes.broadcast(open_records) != facts:
            raise ValueError(
                "this process and process 0 train different runs: start all processes with the"
                " same command and the same data."
            )
        if not processes.leads:
            open_records()
        traced = Path(runs[0].folder) / "profile" if processes.leads else None
        tracer = Profile(traced, profile, records[0].report)
        stack.callback(tracer.close)
        loop = Loop(task, timetable, arrangement, processes, interruption, console, records, tracer)
        return loop.run(environment or {})


def _facts(task: Task, plan: Plan, arrangement: Arrangement, first_epoch: np.ndarray) -> bytes:
    """Serialize the values that determine the programs, so that processes can compare them."""
    sizes = [len(task.train), *map(len, task.evaluated.values())]
    names = ("batch_size", "num_epochs", "accumulate", "eval_every_steps", "resident_bytes")
    fixed = [getattr(plan, name) for name in names]
    order = zlib.crc32(first_epoch.astype(np.int64).tobytes())
    return json.dumps([sizes, fixed, order, arrangement.over, arrangement.num_runs]).encode()


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[Claim]:
    """Create the folder of a run, and lock it against other processes."""
    with contextlib.ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            claim = stack.enter_context(only_one(folder))
        yield claim
