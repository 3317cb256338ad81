"""The record of one run: its progress, checkpoints and log.

Only process 0 reads and writes files; the other processes keep the record in memory.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calib_jax.core.types import PyTree
from calib_jax.train.devices.parallel import canonical
from calib_jax.train.devices.processes import Processes
from calib_jax.train.folder import changes, source_identity
from calib_jax.train.folder.changes import AnotherConfig, Free
from calib_jax.train.folder.checkpoint import Checkpoints
from calib_jax.train.folder.files import Row, writing
from calib_jax.train.folder.journal import ROWS, Journal, json_lines, newer_format
from calib_jax.train.folder.lock import Claim
from calib_jax.train.folder.source_identity import SourceIdentity
from calib_jax.train.folder.writers import MakeWriter
from calib_jax.train.loop.console import Console
from calib_jax.train.loop.plan import Outcome, Plan, Run
from calib_jax.train.step.state import TrainState, not_finite, values_of

CHECKPOINTS = "checkpoints"
OF_STEPS = ("batch_size", "accumulate", "drop_last", "average")  # plan fields that change each step


@dataclasses.dataclass
class Ledger:
    """The JSON values saved with the train state.

    Attributes:
      totals: training sums since the last evaluation. Steps are added one by one, so that the sums
        do not depend on the division into chunks.
      steps: the number of steps in `totals`.
      seconds: the duration of the steps in `totals`, including steps before the run resumed.
      best: see `Outcome`.
      waited: the number of evaluations since the best `patience_for`.
      row: the row of the last evaluation.
      done: whether the run has ended.
      log: the JSON lines of all rows, by file name.
    """

    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    best: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    waited: int = 0
    row: Row | None = None
    done: bool = False
    log: dict[str, str] = dataclasses.field(default_factory=dict)

    def impatient(self, plan: Plan) -> bool:
        """Return whether the patience of the plan has run out."""
        return 0 < plan.patience <= self.waited

    def replan(self, plan: Plan, step: int, total_steps: int) -> None:
        """Adapt a saved ledger to a plan that may have changed since."""
        self.best = {name: best for name, best in self.best.items() if name in plan.best}
        self.done = step >= total_steps or (self.done and self.impatient(plan))


class Record:
    """The progress, checkpoints and log of one run.

    Args:
      run: the run.
      plan: the plan of all runs.
      free: the config keys that may change when the run resumes.
      processes: the communication between processes.
      console: the console to print to.
      same: values by name that must not change when the run resumes.
      claim: the lock of the folder, in process 0.
      writers: functions that open receivers of the rows; see `writers.py`.
    """

    def __init__(
        self,
        run: Run,
        plan: Plan,
        free: Free,
        processes: Processes,
        console: Console,
        *,
        same: Mapping[str, Any] = {},
        claim: Claim | None = None,
        writers: Sequence[MakeWriter] = (),
    ) -> None:
        self.run = run
        self.folder = Path(run.folder)
        self.plan = plan
        self.free = free
        self.processes = processes
        self.console = console
        self.same = same
        self.ledger = Ledger()
        self.step = 0
        self.already = False
        self.failed = ""
        self.last_save = time.monotonic()
        self.tables: Mapping[str, Row] = {}  # further rows of the last evaluation, by file name
        self._claim = claim
        self._journal: Journal | None = None
        self._checkpoints: Checkpoints | None = None
        self.saved: int | None = None  # the newest checkpoint
        if processes.leads:
            if message := newer_format(self.folder):
                raise AnotherConfig(message)
            with writing(self.folder):
                self._checkpoints = Checkpoints(self.folder / CHECKPOINTS, keep=plan.keep)
                opened = [make(self.folder, run.config) for make in writers]
                self._journal = Journal(self.folder, opened)

    @property
    def active(self) -> bool:
        """Whether the run has steps left and has not failed."""
        return not (self.ledger.done or self.failed)

    @property
    def prefix(self) -> str:
        """The prefix of printed lines about this run."""
        return f"{self.run.name}: " if self.run.name else ""

    def note(self, text: str) -> None:
        """Append a line to log.txt without printing it."""
        if self._journal is not None:
            self._check_claim()
            self._journal.note(text)

    def report(self, text: str) -> None:
        """Print a line about this run, and append it to log.txt."""
        self.note(text)
        self.console.print(self.prefix + text)

    def close(self) -> None:
        """Close the journal and the checkpoints."""
        if self._journal is not None:
            self._journal.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    # ------------------------------------------------------------------------------------------
    # Start and resumption.

    def resumed(self, total_steps: int) -> PyTree:
        """Restore the newest checkpoint in process 0, and broadcast its state."""
        # Checkpoints hold the dtypes of the devices.
        state = jax.tree.map(canonical, self.run.state)

        def restore() -> bytes:
            nonlocal state
            ledger, state = self._restored(state, total_steps)
            return json.dumps(ledger).encode()

        ledger = json.loads(self.processes.broadcast(restore))
        state = self.processes.broadcast_tree(state)
        self.step = int(state.step)
        if ledger is not None:
            self.ledger, self.saved = Ledger(**ledger), self.step
        self.already = self.ledger.done
        return state

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Log the environment at the start or resumption of the run."""
        if self._journal is not None:
            self._check_claim()
            self._journal.begin(self.step, environment)

    def _restored(self, template: PyTree, total_steps: int) -> tuple[dict[str, Any] | None, PyTree]:
        assert self._checkpoints is not None
        assert self._journal is not None
        if not self._checkpoints.steps:
            self._checkpoints.check_room(template)
            remarks = self._journal.describe(self.run.config)  # before the folder has a format
            self._mend(remarks + self._journal.write_format() + self._journal.rewind())
            return None, template
        about = self._checkpoints.about()
        config, now = about["config"], self.run.config
        if keys := changes.forbidden(config, now, max(self._checkpoints.steps), self.free):
            raise AnotherConfig(
                f"{self.folder} holds a run of another config ({changes.listed(keys)}): choose"
                " another folder, or the old values."
            )
        self._check_steps(about.get("steps", {}))
        saved = self._checkpoints.restore(template, warn=self._warn)
        ledger = saved.about["ledger"]
        if ledger.keys() != {field.name for field in dataclasses.fields(Ledger)}:
            raise AnotherConfig(
                f"{self.folder} holds a run of another version of calib_jax: go on with that one,"
                " or choose another folder."
            )
        step = int(saved.state.step)
        remarks = self._journal.rewind(ledger["log"])
        remarks += self._journal.write_format()
        remarks += self._journal.redescribe(
            config, lambda there: not changes.forbidden(config, there, step, self.free)
        )
        self._mend(remarks)
        if changed := changes.differences(config, now):
            self._journal.describe(now)
            self.note(f"changed from step {step} on: {'; '.join(changed)}.")
        ledger = Ledger(**ledger)
        if saved.about["patience_for"] != self.plan.patience_for:
            ledger.waited = 0  # restart the count for another metric
        ledger.replan(self.plan, step, total_steps)
        if not ledger.done:
            self._checkpoints.check_room(template)
            self.report(f"going on from step {step} of {total_steps} in {self.folder}.")
        return dataclasses.asdict(ledger), saved.state

    def _steps_depend_on(self) -> dict[str, Any]:
        """Return the values in the run and the plan on which the steps depend."""
        values = {"seed": self.run.seed, **{name: getattr(self.plan, name) for name in OF_STEPS}}
        return {name: np.asarray(value).item() for name, value in values.items()} | {**self.same}

    def _check_steps(self, before: Mapping[str, Any]) -> None:
        """Raise `AnotherConfig` if the plan, the seed, the data or the optimizer has changed.

        Keys of the config are skipped.
        """
        for name, value in self._steps_depend_on().items():
            compared = name in before and name not in self.run.config
            if compared and (held := _change(name, before[name], value)):
                raise AnotherConfig(
                    f"{self.folder} holds a run with {held}: choose another folder, or the old"
                    " value."
                )

    def _mend(self, remarks: Sequence[str]) -> None:
        """Report damaged files in one warning."""
        if remarks:
            self._warn(f"files in {self.folder} were damaged: {'; '.join(remarks)}.")

    def _warn(self, text: str) -> None:
        self.report(f"warning: {text}")

    # ------------------------------------------------------------------------------------------
    # Training.

    def add(self, measured: Mapping[str, np.ndarray], seconds: float) -> None:
        """Add the measurements of steps to the totals."""
        totals = self.ledger.totals
        for name, values in measured.items():
            # Add value by value: sums of blocks would depend on the division into chunks.
            added = totals.get(name, 0.0)
            for value in values.tolist():
                added += value
            totals[name] = added
        self.ledger.steps += len(measured["loss"])
        self.ledger.seconds += seconds

    def row(
        self,
        epoch_steps: int,
        learning_rate: Callable[[int], Any] | None,
        measured: Row,
        seconds: float,
    ) -> Row:
        """Build the row of an evaluation from training totals, measured metrics and times."""
        ledger = self.ledger
        mass = max(ledger.totals["weight"], 1e-30)
        row: Row = {
            "epoch": self.step / epoch_steps,
            "num_epochs": self.plan.num_epochs,
            "step": self.step,
            "train_loss": ledger.totals["loss"] / mass,
            "train_error": 1 - ledger.totals["hit"] / mass,
            "train_gradient_norm": ledger.totals["gradient_norm"] / max(ledger.steps, 1),
        }
        if learning_rate is not None:
            row["learning_rate"] = float(learning_rate(self.step - 1))
        speed = ledger.totals["examples"] / max(ledger.seconds, 1e-9)
        times = {"seconds": ledger.seconds, "evaluation_seconds": seconds}
        return {**row, **measured, **times, "examples_per_second": speed}

    def evaluated(self, row: Row, tables: Mapping[str, Row], part: str, *, last: bool) -> bool:
        """Record the row of an evaluation; return whether the evaluation is the best by any metric.

        Args:
          row: the row for the log.
          tables: rows for other files, by file name.
          part: the data set that selects the best checkpoint.
          last: whether all planned steps are done.
        """
        better = self._note_best(row, part)
        self.ledger.row = row
        self.tables = tables
        for name, logged in {ROWS: row, **tables}.items():
            self.ledger.log[name] = self.ledger.log.get(name, "") + json_lines([logged])
        self.ledger.totals, self.ledger.steps, self.ledger.seconds = {}, 0, 0.0
        impatient = self.ledger.impatient(self.plan)
        self.ledger.done = last or impatient
        if impatient and not last:
            name = self.plan.patience_for
            best = self.ledger.best.get(name, {"epoch": math.nan})
            self.report(
                f"ended after epoch {row['epoch']:g}: {name} has not improved in"
                f" {self.plan.patience} evaluations, since epoch {best['epoch']:g}."
            )
        return better

    def _note_best(self, row: Row, part: str) -> bool:
        improved = set()
        for name, direction in self.plan.best.items():
            value = row[f"{part}_{name}"]
            best = self.ledger.best.get(name)
            sign = 1 if direction == "min" else -1
            if not math.isnan(value) and (best is None or sign * value < sign * best["value"]):
                self.ledger.best[name] = {"step": self.step, "epoch": row["epoch"], "value": value}
                improved.add(name)
        self.ledger.waited = 0 if self.plan.patience_for in improved else self.ledger.waited + 1
        return bool(improved)

    # ------------------------------------------------------------------------------------------
    # Files.

    def begin_to_save(self, host: PyTree, epoch_steps: int) -> None:
        """Start saving the state after this step; `host` must not change afterwards.

        Only process 0 saves; `host` may be None in the others. A state with values that are not
        finite is never saved, and its run is marked as failed.
        """
        if host is not None and not self.accepts(values_of(host), self.step):
            return
        self.saved = self.step
        if self._checkpoints is None:
            return
        self._check_claim()
        ledger = dataclasses.asdict(self.ledger)
        preserve = {int(best["step"]) for best in ledger["best"].values()}
        every = self.plan.keep_every_epochs * epoch_steps
        steps = self._checkpoints.steps
        if every:
            preserve |= {step for step in {*steps, self.step} if step % every == 0}
        if self.step not in steps:
            patience_for = self.plan.patience_for
            about = {
                "config": self.run.config,
                "ledger": ledger,
                "patience_for": patience_for,
                "steps": self._steps_depend_on(),
            }
            self._checkpoints.save(host, about, self.step, preserve=preserve)

    def _check_claim(self) -> None:
        """Raise an error if the locked folder was removed or replaced."""
        if self._claim is not None:
            self._claim.check()

    def wait(self) -> None:
        """Wait until the checkpoint in progress is on disk."""
        if self._checkpoints is not None:
            self._checkpoints.wait()

    def write(self) -> Row:
        """Append the row of the last evaluation to the log."""
        row = self.ledger.row or {}
        if self._journal is not None:
            self._check_claim()
            self._journal.write(row, self.tables)
        return row

    def accepts(self, values: PyTree, step: int) -> bool:
        """Check that the state's values after a step are finite; else mark the run as failed."""
        where = not_finite(values)
        if where:
            problem = f"the state is not finite after {step} steps (first {where})"
            self.fail(problem, "lower the learning rate")
        return not where

    def fail(self, problem: str, remedy: str) -> None:
        """Mark the run as failed, and log the problem and what the user can do about it."""
        self.failed = f"{problem}; {self.last_good()}: {remedy}."
        self.note(self.failed)

    def last_good(self) -> str:
        """Describe the location of the newest checkpoint on disk."""
        newest = self.saved if self._checkpoints is None else self._checkpoints.newest_on_disk()
        if newest is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.folder / CHECKPOINTS / str(newest)}"

    def outcome(self, state: TrainState, stopped_by: int | None) -> Outcome:
        """Build the outcome of the run."""
        done, best = self.ledger.done, self.ledger.best
        return Outcome(state, self.step, done, stopped_by, self.already, best, self.failed)


def _change(name: str, before: Any, now: Any) -> str:
    """Describe the old value of what the steps depend on; "" if it has not changed."""
    if name == "training_data":
        part = source_identity.difference(SourceIdentity(**before), SourceIdentity(**now))
        return f"other {part} of the training examples" if part else ""
    if name == "optimizer":
        both = before.keys() & now.keys()  # another version of Optax may have further options
        changed = changes.differences(*({key: of[key] for key in both} for of in (before, now)))
        return f"another optimizer ({changes.listed(changed)})" if changed else ""
    return "" if before == now else f"{name}={before}, and not {now}"
