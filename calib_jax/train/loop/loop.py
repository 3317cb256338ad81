"""The training loop, shared by all objectives, with checkpoints and resumption.

    steps -> (end of epoch: clock "epoch") -> (evaluation: clock "validation") -> checkpoint -> row

One program trains all runs of an experiment, or a single run. Training is divided into chunks of a
few seconds, which end at the latest at the next end of an epoch or evaluation; signals are handled
between them. A checkpoint is written, and its row logged, while the device runs the next chunk; a
row is logged only after its checkpoint is on disk. The result of a run depends on its config alone,
not on the division into chunks or on the other runs. A resumed run is bitwise equal to an
uninterrupted one.

`timetable.py` decides when runs are evaluated and saved, `programs.py` runs the devices,
`record.py` writes the files of a run, and `processes.py` communicates between processes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from calib_jax.core.statistics import NOTHING
from calib_jax.core.types import PyTree
from calib_jax.train.devices import memory
from calib_jax.train.devices.processes import Processes
from calib_jax.train.feeds.runner import Runner
from calib_jax.train.folder.files import Row
from calib_jax.train.folder.journal import GRADIENT_NORMS, LOSS_STATE, mean_line
from calib_jax.train.folder.record import Record
from calib_jax.train.loop.arrangement import Arrangement
from calib_jax.train.loop.console import Console
from calib_jax.train.loop.interruption import Interruption
from calib_jax.train.loop.plan import Outcome, Task
from calib_jax.train.loop.profiling import Profile
from calib_jax.train.loop.timetable import Chunk, Timetable
from calib_jax.train.step import diagnosis
from calib_jax.train.step.last_layer import EDGES
from calib_jax.train.step.programs import Programs
from calib_jax.train.step.state import values_of


@dataclasses.dataclass
class Loop:
    """The loop over all runs of one experiment.

    Attributes:
      task: the network, loss, optimizer, metrics and data.
      timetable: the plan, and the steps of an epoch.
      arrangement: the placement of the runs on the devices.
      processes: the communication between processes.
      interruption: the received signal.
      console: the console to print to.
      records: the record of each run.
      profile: the profiler trace of some steps.
    """

    task: Task
    timetable: Timetable
    arrangement: Arrangement
    processes: Processes
    interruption: Interruption
    console: Console
    records: Sequence[Record]
    profile: Profile

    def __post_init__(self) -> None:
        self.chunk = Chunk()
        self.memory_checked = False
        # The states to save, on the host, and the evaluated runs; written during the next chunk.
        self.unwritten: tuple[Mapping[int, PyTree], Sequence[int]] = {}, ()
        self.write_error: Exception | None = None

    def run(self, environment: Mapping[str, Any]) -> list[Outcome]:
        """Train all runs until they end or a signal stops them; `environment` is logged."""
        hosts = [record.resumed(self.timetable.total_steps) for record in self.records]
        if not self._active():
            for record in self.records:
                record.report(
                    f"{record.folder} holds a finished run of {self.timetable.plan.num_epochs}"
                    " epochs: nothing to do."
                )
            return [r.outcome(host, None) for r, host in zip(self.records, hosts, strict=True)]
        for record in self.records:
            if record.active:
                record.begin(environment)
            else:
                self.console.print(f"{record.prefix}finished already.")
        states = self.arrangement.place(hosts)
        loss_state = hosts[0].loss_state
        self.programs = Programs(self.task, self.timetable, self.arrangement, loss_state)
        try:
            while self._active() and not self._stopped():
                states = self._chunk(states)
        finally:  # write the last checkpoint and row even if the next chunk raises
            self._write()
        self.processes.raise_alike(self.write_error)
        hosts = self.arrangement.fetch(states)
        self._save_unfinished(hosts)
        return [
            record.outcome(host, self.interruption.signal if record.active else None)
            for record, host in zip(self.records, hosts, strict=True)
        ]

    def _active(self) -> list[int]:
        return [number for number, record in enumerate(self.records) if record.active]

    def _stopped(self) -> bool:
        """Reduce the received signal and the seconds of the last chunk over all processes."""
        self.processes.raise_alike(self.write_error)
        seconds, signal = self.processes.largest(
            [self.chunk.seconds, float(self.interruption.signal or 0)]
        )
        self.chunk.adapt(seconds)
        if signal:
            self.interruption.signal = int(signal)
        return bool(signal)

    # ------------------------------------------------------------------------------------------
    # A chunk: train, update, evaluate.

    def _chunk(self, states: PyTree) -> PyTree:
        """Train for a few seconds at most, then evaluate and copy the states to save."""
        active = self._active()
        runners = {n: self.programs.runner_of(n, r.run.seed, r.step) for n, r in self._of(active)}
        self.chunk.begin()
        # Runs that were stopped at different steps may be in different phases of the warm-up.
        for runner in dict.fromkeys(runners.values()):
            states = self._train(states, runner, [n for n in active if runners[n] is runner])
        steps = {number: record.step for number, record in self._of(active) if not record.failed}
        ended = {n: NOTHING for n, step in steps.items() if self.timetable.ends_epoch(step)}
        states = self._tick("epoch", states, ended)
        evaluated = [number for number, step in steps.items() if self.timetable.is_evaluated(step)]
        better: set[int] = set()
        if evaluated:
            states, better = self._evaluate(states, evaluated)
        self.unwritten = self._states_to_save(states, active, better), evaluated
        for number, record in self._of(active):
            if record.failed and len(self.records) > 1:
                self.console.print(record.prefix + record.failed)
            if not record.active:
                runners[number].end(number)
        return states

    def _of(self, numbers: Sequence[int]) -> list[tuple[int, Record]]:
        return [(number, self.records[number]) for number in numbers]

    def _train(self, states: PyTree, runner: Runner, members: Sequence[int]) -> PyTree:
        """Run the next steps of some runs; meanwhile write the files of the last chunk."""
        starts, stops = [0] * len(self.records), [0] * len(self.records)
        for number, record in self._of(members):
            starts[number] = record.step % self.timetable.epoch_steps
            size = self.profile.limit(self.chunk.size)
            end = min(record.step + size, self.timetable.next_stop(record.step))
            stops[number] = starts[number] + end - record.step
        if not self.memory_checked:
            self._check_memory(runner, states)
        began = time.monotonic()
        num_steps = max(stops[n] - starts[n] for n in members)
        with self.profile.chunk(num_steps):
            states, placed = runner(states, starts, stops)
            self._write()
            measured = runner.measured_in(placed, starts, stops)
        seconds = time.monotonic() - began
        self.chunk.add(num_steps, seconds)
        finite = self.programs.all_finite(states)
        for number, record in self._of(members):
            seed, step, steps = record.run.seed, record.step, measured[number]
            failure = diagnosis.of_steps(self.task, self.timetable, seed, step, steps)
            step += stops[number] - starts[number]
            if failure is not None:
                record.fail(*failure)
            elif finite[number] or record.accepts(self._values(states, number), step):
                record.add(steps, seconds / len(members))
                record.step = step
        last = [steps for steps in measured if len(steps.get("loss", ()))]
        loss, weight = (sum(float(steps[k][-1]) for steps in last) for k in ("loss", "weight"))
        self.console.advance(sum(record.step for record in self.records), loss / max(weight, 1))
        return states

    def _values(self, states: PyTree, number: int) -> PyTree:
        return self.arrangement.fetch(values_of(states))[number]

    def _check_memory(self, runner: Runner, states: PyTree) -> None:
        self.memory_checked = True
        sharing = self.arrangement.sharing
        rows = -(-self.timetable.plan.batch_size // sharing)
        (used,) = self.processes.largest([-memory.free(self.arrangement.devices)])
        text = memory.check_step(runner.compiled(states), rows, -used, sharing)
        self.console.print(text)
        for _, record in self._of(self._active()):
            record.note(text)

    def _evaluate(self, states: PyTree, requested: Sequence[int]) -> tuple[PyTree, set[int]]:
        """Evaluate runs; return the states, and the runs that are the best by some metric."""
        began = time.monotonic()
        evaluate = self.programs.evaluate
        results = evaluate(states, requested)
        seconds = (time.monotonic() - began) / len(requested)
        states = self._tick("validation", states, {n: r.evidence for n, r in results.items()})
        loss_states = self.arrangement.fetch(states.loss_state)
        better: set[int] = set()
        for number, record in self._of(requested):
            result, tables = results[number], {}
            epoch_steps, rate = self.timetable.epoch_steps, self.task.learning_rate
            row = record.row(epoch_steps, rate, result.row, seconds)
            about = {"step": record.step}
            if table := evaluate.table(loss_states[number], result.evidence):
                tables[LOSS_STATE] = about | table
            if result.norms:
                more = {"epoch": row["epoch"], "edges": EDGES, **result.norms}
                tables[GRADIENT_NORMS] = about | more
            last = record.step == self.timetable.total_steps
            if record.evaluated(row, tables, evaluate.chooses, last=last):
                better.add(number)
        return states, better

    def _tick(self, clock: str, states: PyTree, evidence: Mapping[int, Any]) -> PyTree:
        """Update the objective state of the runs whose clock ticked, except during warm-up."""
        steps = {n: self.records[n].step for n in evidence}
        ticked = [n for n, step in steps.items() if not self.timetable.is_warm_up(step)]
        if self.task.objective.clock != clock or not ticked:
            return states
        loss_states = self.arrangement.fetch(states.loss_state)
        for n in ticked:
            now = self.timetable.progress_at(steps[n])
            loss_states[n] = self.programs.update(loss_states[n], evidence[n], now)
        return states._replace(loss_state=self.arrangement.place(loss_states))

    # ------------------------------------------------------------------------------------------
    # Checkpoints and rows.

    def _states_to_save(
        self, states: PyTree, active: Sequence[int], better: Collection[int]
    ) -> dict[int, PyTree]:
        """Copy the states to save to the host, in process 0."""
        now = time.monotonic()

        saved = [
            number
            for number, record in self._of(active)
            if self.timetable.is_saved(
                record.step,
                failed=bool(record.failed),
                better=number in better,
                ended=record.ledger.done,
                seconds=now - record.last_save,
            )
        ]
        for _, record in self._of(saved):
            record.last_save = now
        if not (saved and self.processes.leads):
            return dict.fromkeys(saved)
        hosts = self.arrangement.fetch(states)
        return {number: hosts[number] for number in saved}

    def _write(self) -> None:
        """Write the checkpoints and then the rows of the last chunk, while the devices run."""
        (hosts, evaluated), self.unwritten = self.unwritten, ({}, ())
        if self.write_error is not None:
            return
        try:
            for number, host in hosts.items():
                self.records[number].begin_to_save(host, self.timetable.epoch_steps)
            for number in hosts:
                self.records[number].wait()
            rows: dict[int, list[Row]] = {}
            for _, record in self._of(evaluated):
                row = record.write()
                rows.setdefault(row["step"], []).append(row)
        except Exception as error:  # `raise_alike` raises it in all processes
            self.write_error = error
            return
        for same_step in rows.values():
            self.console.print(mean_line(same_step, len(self.records)))

    def _save_unfinished(self, hosts: Sequence[PyTree]) -> None:
        """Save the runs that a signal stopped, and report their steps."""
        for number, record in self._of(self._active()):
            record.begin_to_save(hosts[number], self.timetable.epoch_steps)
            record.wait()
            if record.active:
                record.note(self._stop_line([record.step]))
        if steps := [record.step for _, record in self._of(self._active())]:
            self.console.print(self._stop_line(steps))

    def _stop_line(self, steps: Sequence[int]) -> str:
        step = " to ".join(map(str, sorted({min(steps), max(steps)})))
        return (
            f"stopped by {self.interruption.name} after step {step} of"
            f" {self.timetable.total_steps}; nothing is lost: the same command goes on from here."
        )
