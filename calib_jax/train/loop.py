"""The training loop: one run, from its first batch to its last checkpoint.

    steps -> (end of epoch: clock "epoch") -> (evaluation: clock "validation") -> checkpoint -> row

Training is divided into chunks of a few seconds, which end at the latest at the next end of an
epoch or evaluation; signals are handled between them. Checkpoints are written, and rows logged,
while the devices run the next chunk. The result of a run depends on its config alone, not on the
division into chunks. A resumed run is bitwise equal to an uninterrupted one.

Several seeds are a loop around `fit` with the same `programs`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from calib_jax.core import checks
from calib_jax.core.statistics import NOTHING
from calib_jax.core.types import PyTree
from calib_jax.train import checkpoint
from calib_jax.train.checkpoint import CHECKPOINTS, AnotherConfig, Checkpoints, Free, identity_of
from calib_jax.train.forward import EDGES
from calib_jax.train.log import GRADIENT_NORMS, LOSS_STATE, Log, MakeWriter, Row
from calib_jax.train.pmap import Devices, Processes, canonical, first, of_this_process, replicate
from calib_jax.train.programs import Measured, Programs
from calib_jax.train.state import Outcome, Plan, Task, TrainState, check_run

# The target length of a chunk, after which signals are handled, in seconds. Each call of a program
# allocates its memory: 70 ms for a small ResNet on a CPU, so chunks of one second would cost 7 %.
CHUNK_SECONDS = 8.0
# A checkpoint is written if less than this share of the time since the one before is its cost.
SHARE_OF_SAVING = 0.1
COST_OF_SAVING = 0.1  # the assumed cost of the first checkpoint, in seconds
OF_STEPS = ("batch_size", "accumulate", "drop_last", "average")  # plan fields that change each step


class NonFinite(ArithmeticError):
    """Raised when the loss, its gradient or the state becomes NaN or infinite."""


@dataclasses.dataclass
class Record:
    """The content of a checkpoint beside the train state; all of it is JSON.

    Attributes:
      config: the config of the run.
      same: other values that must not change when the run resumes, such as the seed.
      commit: the version of the code that saved the checkpoint.
      step: the number of steps done.
      totals: training sums since the last evaluation. Steps are added one by one, so that the sums
        do not depend on the division into chunks.
      steps: the number of steps in `totals`.
      seconds: the duration of the steps in `totals`, including steps before the run resumed.
      rows: the rows of all evaluations.
      tables: the rows of other files, by file name.
      best: see `Outcome`.
      waited: the number of evaluations since the best `patience_for`.
      patience_for: the metric that `waited` counts.
      done: whether the run has ended.
      saved: the steps of the checkpoints of this run on disk.
    """

    config: dict[str, Any]
    same: dict[str, Any]
    commit: str = ""
    step: int = 0
    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    rows: list[Row] = dataclasses.field(default_factory=list)
    tables: dict[str, list[Row]] = dataclasses.field(default_factory=dict)
    best: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    waited: int = 0
    patience_for: str = ""
    done: bool = False
    saved: list[int] = dataclasses.field(default_factory=list)


def fit(
    folder: Path | str,
    state: TrainState,
    task: Task,
    plan: Plan,
    *,
    config: Mapping[str, Any] | None = None,
    free: Free = (),
    same: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    devices: Devices | None = None,
    programs: Programs | None = None,
    name: str = "",
    quiet: bool = False,
    progress: bool = True,
    writers: Sequence[MakeWriter] = (),
    profile: int = 0,
    check: bool = True,
) -> Outcome:
    """Train one run, or resume it from the checkpoints in its folder.

    Ctrl-C and SIGTERM save the state first, and then end the calling program as usual. The same
    call resumes the run. A folder of another config, loss, seed, batch size or training set raises
    `AnotherConfig`.

    Args:
      folder: the folder for checkpoints and logs; created if it does not exist.
      state: the initial state, from `create`.
      task: the network, loss, optimizer, metrics and data.
      plan: the length of training, and the intervals of evaluations and checkpoints.
      config: JSON that identifies the run.
      free: config keys that may change when a run resumes, since the steps done do not depend on
        them; or a function of the two configs and the steps done that returns these keys.
      same: further JSON that must not change, such as the identity of the data.
      environment: JSON about the machine and the versions, logged at each start. A run that resumes
        under another `commit` gets a warning.
      devices: the devices; all devices of all processes by default.
      programs: the programs of another seed of the same task, which are not compiled again.
      name: the start of printed lines, such as "seed 3".
      quiet: print nothing; log.txt is still written.
      progress: whether to show a progress bar on a terminal.
      writers: functions that open receivers of the logged rows, such as `train.tensorboard` and
        `train.wandb`.
      profile: the largest number of steps to trace with the JAX profiler, in one epoch, after the
        steps that compile; the trace is in the folder `profile` of the run.
      check: raise `NonFinite` for a loss that is not finite, and end the program after a signal;
        else the outcome has `failed` or `stopped_by`.
    """
    # ---------------------------------------------------------------------------------------------
    # The task, the plan and the devices.
    folder, environment = Path(folder), environment or {}
    check_run(state, task, plan)
    checks.at_least("profile", profile, 0)
    programs = programs or Programs(task, plan, devices)
    local = of_this_process(programs.devices)
    processes = Processes(programs.devices)
    if processes.number > max(1, len(task.train)):
        raise ValueError(
            f"{processes.number} processes cannot share {len(task.train)} examples: start at most"
            " as many as there are examples."
        )
    record = Record(
        json.loads(json.dumps(config or {})),
        {**_identity(task, plan), **json.loads(json.dumps(same or {}))},
        environment.get("commit", ""),
        patience_for=plan.patience_for,
    )
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(interruptions())

        # -----------------------------------------------------------------------------------------
        # Restore or begin. Process 0 alone has files.
        files: Files | None = None
        host = jax.tree.map(canonical, state)  # checkpoints hold the dtypes of the devices

        def restored() -> bytes:
            nonlocal files, host, record
            checkpoint.check_ours(folder)
            stack.enter_context(checkpoint.only_one(folder))
            checkpoints = stack.enter_context(Checkpoints(folder / CHECKPOINTS))
            log = Log(
                folder,
                [make(folder, record.config) for make in writers],
                prefix=f"{name}: " if name else "",
                quiet=quiet,
                bar_steps=programs.total_steps if progress else 0,
            )
            stack.callback(log.close)
            host, record = _resumed(checkpoints, log, host, record, programs, free)
            files = Files(checkpoints, log, record, programs)
            if not record.done:
                log.describe(record.config, {"step": record.step, **environment})
            return json.dumps(dataclasses.asdict(record)).encode()

        text = processes.broadcast(restored)
        record = record if processes.leads else Record(**json.loads(text))
        host = processes.broadcast_tree(host)
        if record.done:
            if files:
                files.log.say(
                    f"{folder} holds a finished run of {plan.num_epochs} epochs: nothing to do."
                )
            return Outcome(host, record.step, True, None, True, record.best)
        placed = replicate(host, local)
        if files:
            stack.push(files)  # writes what is in memory, also if a chunk raises

        # -----------------------------------------------------------------------------------------
        # Train in chunks, until the run ends, fails or is stopped.
        size, steps, seconds, chunks, failed = 1, 0, 0.0, 0, ""
        while not (record.done or failed):
            seconds, received = processes.largest(seconds, max(signals, default=0))
            if received:
                signals.append(int(received))
                break
            if steps:  # grow at most 64-fold, as the first steps compile
                wanted = steps * CHUNK_SECONDS / max(seconds, 1e-6)
                size = max(1, int(min(wanted, 64 * size)))

            # One chunk of steps. Meanwhile the last checkpoint and its row are written.
            step, chunks = record.step, chunks + 1
            is_traced = bool(profile) and chunks == 2
            steps = min(profile if is_traced else size, programs.next_stop(step) - step)
            began = time.monotonic()
            with _traced(folder, steps, files if is_traced else None):
                placed, read = programs.run(placed, plan.seed, step, step + steps)
                if files:
                    files.flush()
                measured = read()
            seconds = time.monotonic() - began
            failed = programs.failure(placed, plan.seed, step, measured)
            if failed:
                break
            _add(record, measured, seconds)
            record.step = step = step + steps
            if files:
                loss = float(measured["loss"][-1] / max(measured["weight"][-1], 1))
                files.log.advance(step, loss)

            # The end of an epoch ticks the clock "epoch".
            if step % programs.epoch_steps == 0:
                placed = _tick("epoch", programs, placed, NOTHING, step)

            # An evaluation ticks the clock "validation", and gives a row.
            better = False
            if programs.is_evaluated(step):
                began = time.monotonic()
                result = programs.evaluate(placed)
                spent = time.monotonic() - began
                placed = _tick("validation", programs, placed, result.evidence, step)
                better = _note(record, programs, result, first(placed.loss_state), spent)
                if files and record.done and step < programs.total_steps:
                    files.log.say(_impatient(record, plan))

            # Save the state and the record, if the last checkpoint is paid for.
            every = plan.checkpoint_every_epochs, plan.keep_every_epochs
            regular = any(n and step % (n * programs.epoch_steps) == 0 for n in every)
            if files and not record.done and (better or regular or files.is_late()):
                files.keep(first(placed))
                if files.is_due():
                    files.save()

        # -----------------------------------------------------------------------------------------
        # The end: the last checkpoint, also of a run that was stopped.
        host = first(placed)
        if files and not failed:
            files.keep(host)
        if files:
            files.save()
            files.flush()
            if failed:
                failed = files.failed(failed)
            elif not record.done:
                which = signal.Signals(signals[-1]).name.replace("SIGINT", "Ctrl-C")
                files.log.say(
                    f"stopped by {which} after step {record.step} of"
                    f" {programs.total_steps}; nothing is lost: the same command goes on from here."
                )
    stopped_by = signals[-1] if signals and not failed else None  # also one at the very end
    outcome = Outcome(host, record.step, record.done, stopped_by, False, record.best, failed)
    if check and failed:
        raise NonFinite(failed)
    if check and stopped_by:
        raise KeyboardInterrupt if stopped_by == signal.SIGINT else SystemExit(128 + stopped_by)
    return outcome


# ------------------------------------------------------------------------------------------------
# Resumption.


def _identity(task: Task, plan: Plan) -> dict[str, Any]:
    """Return the values on which the steps depend, beside the config."""
    numbers = {name: np.asarray(getattr(plan, name)).item() for name in ("seed", *OF_STEPS)}
    return {**numbers, "loss": task.objective.name, "training set": identity_of(task.train)}


def _resumed(
    checkpoints: Checkpoints,
    log: Log,
    template: PyTree,
    record: Record,
    programs: Programs,
    free: Free,
) -> tuple[PyTree, Record]:
    """Restore the newest readable checkpoint and its record; else return the given ones."""
    folder, plan = checkpoints.folder.parent, programs.plan
    if not checkpoints.steps:
        return template, record
    about = checkpoints.about()
    if about.keys() != {field.name for field in dataclasses.fields(Record)}:
        raise AnotherConfig(
            f"{folder} holds a run of another version of calib_jax: go on with that one, or choose"
            " another folder."
        )
    before, step = Record(**about), about["step"]
    allowed = free(before.config, record.config, step) if callable(free) else free
    keys = checkpoint.differences(before.config, record.config, free=allowed)
    if keys := keys or checkpoint.differences(before.same, record.same):
        raise AnotherConfig(
            f"{folder} holds a run of another config ({checkpoint.listed(keys)}): choose another"
            " folder, or the old values."
        )
    saved = checkpoints.restore(template, warn=lambda text: log.say(f"warning: {text}"))
    restored = Record(**saved.about)
    if changed := checkpoint.differences(restored.config, record.config):
        log.say(f"changed from step {restored.step} on: {'; '.join(changed)}.")
    if restored.commit and record.commit and restored.commit != record.commit:
        log.say(
            f"warning: the code of commit {restored.commit} trained this run so far, and that of"
            f" commit {record.commit} goes on: results may differ."
        )
    restored.config, restored.commit = record.config, record.commit
    # The plan may have changed.
    if restored.patience_for != plan.patience_for:
        restored.waited, restored.patience_for = 0, plan.patience_for
    impatient = 0 < plan.patience <= restored.waited
    restored.best = {name: best for name, best in restored.best.items() if name in plan.best}
    restored.done = restored.step >= programs.total_steps or (restored.done and impatient)
    if not restored.done:
        log.say(f"going on from step {restored.step} of {programs.total_steps} in {folder}.")
    return saved.state, restored


# ------------------------------------------------------------------------------------------------
# The record of a run.


def _add(record: Record, measured: Mapping[str, np.ndarray], seconds: float) -> None:
    """Add the measurements of steps to the totals."""
    for name, values in measured.items():
        # Add value by value: sums of blocks would depend on the division into chunks.
        added = record.totals.get(name, 0.0)
        record.totals[name] = functools.reduce(operator.add, values.tolist(), added)
    record.steps += len(measured["loss"])
    record.seconds += seconds


def _note(
    record: Record, programs: Programs, result: Measured, loss_state: PyTree, seconds: float
) -> bool:
    """Add the row of an evaluation; return whether the evaluation is the best by any metric."""
    task, plan, step = programs.task, programs.plan, record.step
    totals, mass = record.totals, max(record.totals["weight"], 1e-30)
    row: Row = {
        "epoch": step / programs.epoch_steps,
        "num_epochs": plan.num_epochs,
        "step": step,
        "train_loss": totals["loss"] / mass,
        "train_error": 1 - totals["hit"] / mass,
        "train_gradient_norm": totals["gradient_norm"] / max(record.steps, 1),
    }
    if task.learning_rate is not None:
        row["learning_rate"] = float(task.learning_rate(step - 1))
    row |= result.row | {"seconds": record.seconds, "evaluation_seconds": seconds}
    row["examples_per_second"] = totals["examples"] / max(record.seconds, 1e-9)
    record.rows.append(row)
    record.totals, record.steps, record.seconds = {}, 0, 0.0
    tables = {}
    if table := programs.table(loss_state, result.evidence):
        tables[LOSS_STATE] = {"step": step, **table}
    if result.norms:
        head = {"step": step, "epoch": row["epoch"], "edges": EDGES}
        tables[GRADIENT_NORMS] = {**head, **result.norms}
    for name, entry in tables.items():
        record.tables.setdefault(name, []).append(entry)
    improved = set()
    for name, direction in plan.best.items():
        value, best = row[f"{programs.chooses}_{name}"], record.best.get(name)
        better = operator.lt if direction == "min" else operator.gt
        if not math.isnan(value) and (best is None or better(value, best["value"])):
            record.best[name] = {"step": step, "epoch": row["epoch"], "value": value}
            improved.add(name)
    record.waited = 0 if plan.patience_for in improved else record.waited + 1
    record.done = step == programs.total_steps or 0 < plan.patience <= record.waited
    return bool(improved)


def _impatient(record: Record, plan: Plan) -> str:
    name, epoch = plan.patience_for, record.rows[-1]["epoch"]
    best = record.best.get(name, {"epoch": math.nan})
    return (
        f"ended after epoch {epoch:g}: {name} has not improved in {plan.patience} evaluations,"
        f" since epoch {best['epoch']:g}."
    )


def _tick(clock: str, programs: Programs, placed: PyTree, evidence: Any, step: int) -> PyTree:
    """Update the objective's state if its clock ticked, except during warm-up."""
    if programs.task.objective.clock != clock or programs.is_warm_up(step):
        return placed
    now = programs.progress_at(step)
    loss_state = programs.update(first(placed.loss_state), evidence, now)
    local = of_this_process(programs.devices)
    return placed._replace(loss_state=replicate(loss_state, local))


class Files(contextlib.AbstractContextManager["Files"]):
    """The files of a run, in process 0: checkpoints and logs; a `with` block ends with a save.

    A state that is to be kept waits in memory until it is due: saving takes at most a tenth of the
    time of a run. After a kill the run goes on from the newest checkpoint on disk, with the same
    results, so that a state in memory costs its steps and nothing else.

    Args:
      checkpoints: the checkpoints.
      log: the log, whose files are written from the record.
      record: the restored or new record, which the loop changes.
      programs: the programs, with the plan that says which checkpoints to keep.
    """

    def __init__(
        self, checkpoints: Checkpoints, log: Log, record: Record, programs: Programs
    ) -> None:
        self.checkpoints, self.log = checkpoints, log
        self._record, self._plan = record, programs.plan
        self._every = programs.plan.keep_every_epochs * programs.epoch_steps
        self._states: dict[int, tuple[PyTree, dict[str, Any]]] = {}  # in memory, by step
        self._lasting: set[int] = set()  # steps of the best and of regular checkpoints
        self._logged = len(record.rows)
        self._saved_at, self._cost = time.monotonic(), COST_OF_SAVING
        log.restore(record.rows, record.tables)

    def keep(self, host: PyTree) -> None:
        """Keep a state in memory; it replaces states that are neither the best nor regular."""
        record = self._record
        self._lasting = {int(best["step"]) for best in record.best.values()}
        if self._every:
            steps = {*record.saved, *self._states, record.step}
            self._lasting |= {step for step in steps if step % self._every == 0}
        lasting = {step: state for step, state in self._states.items() if step in self._lasting}
        self._states = {**lasting, record.step: (host, dataclasses.asdict(record))}

    def is_late(self) -> bool:
        """Check whether the last checkpoint is older than the plan allows."""
        return time.monotonic() - self._saved_at > 60 * self._plan.checkpoint_every_minutes

    def is_due(self) -> bool:
        """Check whether the last checkpoint is late, or its cost is a small share of its age."""
        age = time.monotonic() - self._saved_at
        return self.is_late() or self._cost <= SHARE_OF_SAVING * age

    def save(self) -> None:
        """Write the states in memory; the last one is written in the background until `flush`."""
        began, record = time.monotonic(), self._record
        for step, (host, about) in sorted(self._states.items()):
            self.checkpoints.wait()
            there = self.checkpoints.steps
            if step in there:
                continue
            record.saved = [*(saved for saved in record.saved if saved in there), step]
            about["saved"] = record.saved
            keep = {*record.saved[-self._plan.keep :], *self._lasting}
            self.checkpoints.save(host, about, step, remove=set(record.saved) - keep)
        self._states = {}
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - began

    def flush(self) -> None:
        """Wait for the checkpoint in progress, and log the row of the last evaluation."""
        record, began = self._record, time.monotonic()
        self.checkpoints.wait()
        self._cost += time.monotonic() - began
        if self._logged < len(record.rows):
            self._logged = len(record.rows)
            self.log.write(record.rows, record.tables)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Write what is in memory, unless a write has failed; data may fail by another OSError."""
        if not isinstance(error, checkpoint.CannotWrite):
            self.save()
            self.flush()

    def failed(self, problem: str) -> str:
        """Log a problem with the place of the newest checkpoint, and return the line."""
        newest = self.checkpoints.steps[-1:]
        good = f"the last good checkpoint is {self.checkpoints.folder / str(*newest)}"
        what, _, remedy = problem.rpartition(": ")
        line = f"{what}; {good if newest else 'there is no checkpoint yet'}: {remedy}."
        self.log.note(line)
        return line


@contextlib.contextmanager
def _traced(folder: Path, steps: int, files: Files | None) -> Iterator[None]:
    """Trace the steps of a block by the JAX profiler, unless files is None."""
    if files is None:
        yield
        return
    place = folder / "profile"
    with jax.profiler.trace(str(place)):
        yield
    files.log.say(
        f"profile: {steps} steps in {place}; open it in Perfetto (https://ui.perfetto.dev) or by"
        f" tensorboard --logdir={place}."
    )


# ------------------------------------------------------------------------------------------------
# Signals.


@contextlib.contextmanager
def interruptions() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM in a `with` block; the loop saves the state and stops.

    The handler does not raise, because an exception would unwind through running threads of JAX and
    orbax and can crash the interpreter. A second Ctrl-C ends the process at once; saved checkpoints
    stay whole. Outside the main thread nothing is collected.

    Yields:
      the numbers of the signals that were received so far.
    """
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in received:
            if hasattr(sys, "ps1"):  # an interactive session
                raise KeyboardInterrupt
            os._exit(128 + signal.SIGINT)
        received.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, record) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
