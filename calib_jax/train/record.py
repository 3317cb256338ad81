"""What the loop knows of one run beside its train state, and what it keeps on the disk.

The first of several processes alone reads and writes; in the others a record is kept in memory.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calib_jax.core.types import PyTree
from calib_jax.train.checkpoint import Checkpoints, differences
from calib_jax.train.files import Row, writing
from calib_jax.train.journal import ROWS, Console, Journal
from calib_jax.train.plan import Outcome, Plan, Run
from calib_jax.train.state import TrainState, not_finite, values_of
from calib_jax.train.together import Together

CHECKPOINTS = "checkpoints"


class AnotherConfig(ValueError):
    """The folder holds a run of another config."""


@dataclasses.dataclass
class Ledger:
    """What is saved with the train state, as JSON.

    Attributes:
      totals: of training since the last evaluation, added up step by step, so that they do not
        depend on where training was cut.
      steps: how many steps that was.
      seconds: how long they took, also before the run was resumed.
      best: see `Outcome`.
      waited: evaluations without a better `patience_for`.
      row, tables: what the last evaluation logged; tables by the name of their file.
      done: whether the run has ended.
      logged: the steps of all rows, by the name of their file.
    """

    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    best: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    waited: int = 0
    row: Row | None = None
    tables: dict[str, Row] = dataclasses.field(default_factory=dict)
    done: bool = False
    logged: dict[str, list[int]] = dataclasses.field(default_factory=dict)


class Record:
    """One run: how far it is, its checkpoints and its log.

    Args:
      run: what only it has.
      plan: of all runs.
      free: keys of its config that may change in the middle of a run.
      together: the processes.
      console: where people read.
      tensorboard: write events, too.
    """

    def __init__(
        self,
        run: Run,
        plan: Plan,
        free: Collection[str],
        together: Together,
        console: Console,
        *,
        tensorboard: bool = False,
    ) -> None:
        self.run = run
        self.folder = Path(run.folder)
        self.plan = plan
        self.free = free
        self.together = together
        self.console = console
        self.ledger = Ledger()
        self.step = 0
        self.already = False
        self.failed = ""
        self.last_save = time.monotonic()
        self._journal: Journal | None = None
        self._checkpoints: Checkpoints | None = None
        self.saved: int | None = None  # the newest checkpoint
        if together.leads:
            with writing(self.folder):
                self._checkpoints = Checkpoints(self.folder / CHECKPOINTS, keep=plan.keep)
                self._journal = Journal(self.folder, tensorboard=tensorboard)

    @property
    def active(self) -> bool:
        """Whether there is more to train."""
        return not (self.ledger.done or self.failed)

    @property
    def called(self) -> str:
        """What lines about it begin with."""
        return f"{self.run.name}: " if self.run.name else ""

    def note(self, text: str) -> None:
        """Keep a line that was said elsewhere."""
        if self._journal is not None:
            self._journal.note(text)

    def say(self, text: str) -> None:
        """Say a line about this run, and keep it."""
        self.note(text)
        self.console.say(self.called + text)

    def close(self) -> None:
        """Close what is open."""
        if self._journal is not None:
            self._journal.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    # ------------------------------------------------------------------------------------------
    # Beginning and going on.

    def resumed(self, total_steps: int) -> PyTree:
        """Read the newest checkpoint, in the first process, and give all its state."""
        state = jax.tree.map(np.asarray, self.run.state)

        def find() -> bytes:
            nonlocal state
            ledger, state = self._found(state, total_steps)
            return json.dumps(ledger).encode()

        ledger = json.loads(self.together.of_first(find))
        state = self.together.tree_of_first(state)
        self.step = int(state.step)
        if ledger is not None:
            self.ledger, self.saved = Ledger(**ledger), self.step
        self.already = self.ledger.done
        return state

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Note that the run starts, or goes on."""
        if self._journal is not None:
            self._journal.begin(self.step, environment)

    def _found(self, template: PyTree, total_steps: int) -> tuple[dict[str, Any] | None, PyTree]:
        assert self._checkpoints is not None
        assert self._journal is not None
        if not self._checkpoints.steps:
            self._checkpoints.check_room(template)
            self._mend(self._journal.rewind(0))
            self._journal.describe(self.run.config)
            return None, template
        config = self._checkpoints.about()["config"]
        self._compare(config)
        saved = self._checkpoints.latest(template, say=lambda text: self.say(f"warning: {text}"))
        ledger = saved.about["ledger"]
        if not {field.name for field in dataclasses.fields(Ledger)}.issuperset(ledger):
            raise AnotherConfig(
                f"{self.folder} holds a run of another version of calib_jax: go on with that one,"
                " or choose another folder."
            )
        step = int(saved.state.step)
        logged = ledger.get("logged", {})
        remarks = self._journal.rewind(step, ledger["row"], ledger["tables"], logged)
        remarks += self._journal.redescribe(config, lambda there: not self._changed(config, there))
        self._mend(self._checkpoints.mend(step) + remarks)
        if not ledger["done"]:
            self._checkpoints.check_room(template)
            self.say(f"going on from step {step} of {total_steps} in {self.folder}.")
        return ledger, saved.state

    def _mend(self, remarks: Sequence[str]) -> None:
        """Say in one warning what was damaged; the rest was restored."""
        if remarks:
            self.say(f"warning: {self.folder} was damaged, and goes on: {'; '.join(remarks)}.")

    def _changed(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        """Name the keys in which two configs differ, but for those that may."""
        fixed = (
            {key: value for key, value in config.items() if key not in self.free}
            for config in (before, now)
        )
        return differences(*fixed)

    def _compare(self, before: Mapping[str, Any]) -> None:
        """Refuse to go on with a run of another config."""
        changed = self._changed(before, self.run.config)
        if changed:
            said = "; ".join(changed[:5])
            said += f"; and {len(changed) - 5} more keys" if len(changed) > 5 else ""
            raise AnotherConfig(
                f"{self.folder} holds a run of another config ({said}): choose another folder, or"
                " the old values."
            )

    # ------------------------------------------------------------------------------------------
    # While it trains.

    def add(self, found: Mapping[str, np.ndarray], seconds: float) -> None:
        """Add up what was measured in some steps."""
        totals = self.ledger.totals
        for name, values in found.items():
            # One after another: a sum in blocks would depend on where the blocks are cut.
            added = totals.get(name, 0.0)
            for value in values.tolist():
                added += value
            totals[name] = added
        self.ledger.steps += len(found["loss"])
        self.ledger.seconds += seconds

    def row(
        self,
        epoch_steps: int,
        learning_rate: Callable[[int], Any] | None,
        measured: Row,
        seconds: float,
    ) -> Row:
        """Make the row of an evaluation: what training has added up, what was measured, times."""
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
        speed = ledger.totals["weight"] / max(ledger.seconds, 1e-9)
        times = {"seconds": ledger.seconds, "evaluation_seconds": seconds}
        return {**row, **measured, **times, "examples_per_second": speed}

    def evaluated(self, row: Row, tables: Mapping[str, Row], part: str, *, last: bool) -> bool:
        """Take the row of an evaluation; tell whether it is the best by some metric.

        Args:
          row: of the log.
          tables: more rows, by the name of their file.
          part: the set that chooses the best.
          last: whether all planned steps are done.
        """
        better = self._note_best(row, part)
        self.ledger.row = row
        self.ledger.tables = dict(tables)
        for name in (ROWS, *tables):
            self.ledger.logged.setdefault(name, []).append(self.step)
        self.ledger.totals, self.ledger.steps, self.ledger.seconds = {}, 0, 0.0
        patient = not self.plan.patience or self.ledger.waited < self.plan.patience
        self.ledger.done = last or not patient
        if not patient and not last:
            name = self.plan.patience_for
            best = self.ledger.best.get(name, {"epoch": math.nan})
            self.say(
                f"ends after epoch {row['epoch']:g}: {self.plan.patience} evaluations brought no"
                f" better {name} than that of epoch {best['epoch']:g}."
            )
        return better

    def _note_best(self, row: Row, part: str) -> bool:
        improved = set()
        for name, direction in self.plan.best.items():
            value = row[f"{part}_{name}"]
            known = self.ledger.best.get(name)
            sign = 1 if direction == "min" else -1
            if not math.isnan(value) and (known is None or sign * value < sign * known["value"]):
                self.ledger.best[name] = {"step": self.step, "epoch": row["epoch"], "value": value}
                improved.add(name)
        self.ledger.waited = 0 if self.plan.patience_for in improved else self.ledger.waited + 1
        return bool(improved)

    # ------------------------------------------------------------------------------------------
    # On the disk.

    def begin_to_save(self, host: PyTree, epoch_steps: int) -> None:
        """Begin to save the state after this step; `host` must not change any more.

        It is the first process that saves; the others need not have it. A state with values that
        are not finite is never saved, whoever asks for it: the run has failed.
        """
        if host is not None and not self.accepts(values_of(host), self.step):
            return
        self.last_save = time.monotonic()
        self.saved = self.step
        if self._checkpoints is None:
            return
        ledger = dataclasses.asdict(self.ledger)
        kept = {int(best["step"]) for best in ledger["best"].values()}
        every = self.plan.keep_every_epochs * epoch_steps
        known = self._checkpoints.steps
        if every:
            kept |= {one for one in {*known, self.step} if one % every == 0}
        if self.step not in known:
            about = {"config": self.run.config, "ledger": ledger}
            self._checkpoints.save(host, about, self.step, kept=kept)

    def wait(self) -> None:
        """Wait until what was begun is on the disk."""
        if self._checkpoints is not None:
            self._checkpoints.wait()

    def write(self) -> Row:
        """Add the row of the last evaluation to the log."""
        row = self.ledger.row or {}
        if self._journal is not None:
            self._journal.write(row, self.ledger.tables)
        return row

    def accepts(self, values: PyTree, step: int) -> bool:
        """Check that the values of the state after a step are finite; else the run has failed."""
        where = not_finite(values)
        if where:
            self.fail(
                f"the state is not finite after {step} steps (first {where});"
                f" {self.last_good()}: lower the learning rate."
            )
        return not where

    def fail(self, why: str) -> None:
        """End the run where it is, for a reason that is logged."""
        self.failed = why
        self.note(why)

    def last_good(self) -> str:
        """Say where the newest checkpoint is, of those that are on the disk."""
        newest = self.saved if self._checkpoints is None else self._checkpoints.newest_on_disk()
        if newest is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.folder / CHECKPOINTS / str(newest)}"

    def outcome(self, state: TrainState, stopped_by: int | None) -> Outcome:
        """Say how it ended."""
        done, best = self.ledger.done, self.ledger.best
        return Outcome(state, self.step, done, stopped_by, self.already, best, self.failed)
