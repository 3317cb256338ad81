"""The training loop, shared by all objectives, with checkpoints and resumption.

    steps -> (end of epoch: clock "epoch") -> (evaluation: clock "validation") -> checkpoint -> row

One program trains all runs of an experiment, or a single run. Training is divided into stretches
between evaluations, and stretches into pieces of a few seconds, after which signals are handled. A
checkpoint is written, and its row logged, while the device runs the next piece; a row is logged
only after its checkpoint is on disk. The result of a run depends on its config alone, not on the
division into pieces or on the other runs. A resumed run is bitwise equal to an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calib_jax.core.examples import Draw, Source, read
from calib_jax.core.progress import Progress
from calib_jax.core.statistics import NOTHING
from calib_jax.core.types import PyTree
from calib_jax.train import due, memory, parallel
from calib_jax.train.arrangement import Arrangement
from calib_jax.train.feeding import feed
from calib_jax.train.files import Row, writing
from calib_jax.train.interruption import Interruption, noted
from calib_jax.train.journal import (
    GRADIENT_NORMS,
    LOSS_STATE,
    Console,
    mean_line,
    read_rows,
    table_text,
)
from calib_jax.train.last_layer import EDGES
from calib_jax.train.lock import only_one
from calib_jax.train.measuring import Measuring
from calib_jax.train.ordering import in_batches, shuffled, steps_per_epoch
from calib_jax.train.parallel import Devices
from calib_jax.train.plan import Outcome, Plan, Run, Task
from calib_jax.train.record import Record
from calib_jax.train.runner import Feed, Runner
from calib_jax.train.state import TrainState, all_finite, values_of
from calib_jax.train.step import make_train_step
from calib_jax.train.together import Elsewhere, Together

# The target length of a piece, after which signals are handled, in seconds. Each call of a program
# allocates its memory: 70 ms for a small ResNet on a CPU, so pieces of one second would cost 7 %.
PIECE_SECONDS = 8.0


class NonFinite(ArithmeticError):
    """Raised when the loss, its gradient or the state becomes NaN or infinite."""


def fit(
    folder: Path | str,
    state: TrainState,
    task: Task,
    plan: Plan,
    *,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Outcome:
    """Train one run, or resume it from the checkpoints in its folder.

    Args:
      folder: the folder for checkpoints and logs; created if it does not exist.
      state: the initial state, from `create`.
      task: the network, loss, optimiser, metrics and data.
      plan: the length of training, and the intervals of evaluations and checkpoints.
      config: JSON that identifies the run; a folder with another config raises.
      options: the options of `fit_all`.
    """
    (outcome,) = fit_all([Run(folder, state, plan.seed, config or {})], task, plan, **options)
    if outcome.failed:
        raise NonFinite(outcome.failed)
    return outcome


def fit_all(
    runs: Sequence[Run],
    task: Task,
    plan: Plan,
    *,
    free: Collection[str] = (),
    current: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    environment: Mapping[str, Any] | None = None,
    devices: Devices | None = None,
    over: str = "map",
    quiet: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
) -> list[Outcome]:
    """Train several runs in one program, or resume them from the checkpoints in their folders.

    Each run has its own folder, in the same format as that of a single run, and its own seed, loss
    state, log, checkpoints and patience. A run whose loss is not finite is frozen and reported; the
    others continue.

    Args:
      runs: the runs, with the values specific to each.
      task: the network, loss, optimiser, metrics and data.
      plan: the length of training, and the intervals of evaluations and checkpoints; its seed is
        not used.
      free: config keys that may change when a run resumes, since results do not depend on them.
      current: converts the config of a folder to the names that its keys have today.
      environment: JSON about the machine and the versions; logged at each start of the runs.
      devices: the devices; all devices of all processes by default.
      over: "map" trains one run after another, bitwise equal to each alone; "vmap" batches the runs
        in every operation; "devices" trains separate runs on each device.
      quiet: print nothing; log.txt is still written.
      progress: whether to show a progress bar on a terminal.
      tensorboard: also write TensorBoard events.
    """
    for run in runs:
        if bool(run.state.average) != (plan.average > 0):
            raise ValueError(
                f"average={plan.average}, and the state has {'' if run.state.average else 'no '}"
                "averages: make it by create(..., averaged=plan.average > 0)."
            )
    unmeasured = sorted(set(plan.best) - set(task.metrics if task.evaluated else ()))
    if unmeasured:
        raise ValueError(
            f"plan.best names {', '.join(unmeasured)}, which the task does not measure: give"
            ' metrics of these names, and evaluated={"validation": SOURCE}.'
        )
    if len({Path(run.folder).resolve() for run in runs}) < len(runs):
        raise ValueError("two of the runs have the same folder: give each its own.")
    devices = parallel.all_devices() if devices is None else devices
    arrangement = Arrangement(devices, len(runs), over)
    together = Together(devices)
    if together.number > len(task.train):
        raise ValueError(
            f"{together.number} processes cannot share {len(task.train)} examples: start at most"
            " as many as there are examples."
        )
    memory.check_states(runs[0].state, len(runs), devices, over=over)
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(noted())
        loop = _Loop(task, plan, arrangement, together, interruption)
        loop.console = Console(
            len(runs) * loop.total_steps, progress=progress, quiet=quiet or not together.leads
        )
        stack.callback(loop.console.close)

        def open_records() -> bytes:
            for run in runs:
                if together.leads:
                    stack.enter_context(_claimed(Path(run.folder)))
                kept = Record(
                    run, plan, free, current, together, loop.console, tensorboard=tensorboard
                )
                stack.callback(kept.close)
                loop.records.append(kept)
            return loop.facts()

        if together.of_first(open_records) != loop.facts():
            raise ValueError(
                "this process trains something else than the first one: give all of them the same"
                " command and the same data."
            )
        if not together.leads:
            open_records()
        return loop.run(environment or {})


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Create the folder of a run, and lock it against other processes."""
    with contextlib.ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_one(folder))
        yield


class _Loop:
    def __init__(
        self,
        task: Task,
        plan: Plan,
        arrangement: Arrangement,
        together: Together,
        interruption: Interruption,
    ) -> None:
        self.task = task
        self.plan = plan
        self.arrangement = arrangement
        self.together = together
        self.interruption = interruption
        self.console: Console
        self.records: list[Record] = []
        self.epoch_steps = steps_per_epoch(
            len(task.train), plan.batch_size, drop_last=plan.drop_last
        )
        self.total_steps = plan.num_epochs * self.epoch_steps
        self.clocks = _Clocks(task.objective, plan, self.epoch_steps)
        self.pieces = _Pieces()
        self.all_finite = parallel.data_parallel(all_finite, arrangement.devices)
        self.begun: dict[int, int] = {}
        self.sized = False
        self.trouble: Exception | None = None
        self.pending: tuple[Mapping[int, PyTree], Sequence[int]] = {}, ()

    def facts(self) -> bytes:
        """Serialise the values that determine the programs, so that processes can compare them."""
        sets = [len(self.task.train), *map(len, self.task.evaluated.values())]
        plan = dataclasses.asdict(self.plan)
        kept = ("batch_size", "num_epochs", "accumulate", "eval_every_steps", "resident_bytes")
        fixed = [sets, [plan[name] for name in kept], self.arrangement.over]
        return json.dumps([*fixed, self.arrangement.num_runs]).encode()

    def run(self, environment: Mapping[str, Any]) -> list[Outcome]:
        hosts = [record.resumed(self.total_steps) for record in self.records]
        if not any(record.active for record in self.records):
            for record in self.records:
                record.say(
                    f"{record.folder} holds a finished run of {self.plan.num_epochs} epochs:"
                    " nothing to do."
                )
            return [r.outcome(host, None) for r, host in zip(self.records, hosts, strict=True)]
        for record in self.records:
            if record.active:
                record.begin(environment)
            else:
                self.console.say(f"{record.called}finished already.")
        states = self.arrangement.place(hosts)
        self._build()
        try:
            while any(record.active for record in self.records) and not self._stopped():
                states = self._piece(states)
        finally:  # save and log the last evaluation even if the next piece raises
            self._complete()
        self._raise_alike()
        hosts = self.arrangement.fetch(states)
        stopped = self.interruption.signal
        left = [number for number, record in enumerate(self.records) if record.active]
        for number in left:
            record = self.records[number]
            record.begin_to_save(hosts[number], self.epoch_steps)
            record.wait()
            if record.active:
                record.note(self._stop_line([record.step]))
        left = [number for number in left if self.records[number].active]
        if left:
            self.console.say(self._stop_line([self.records[number].step for number in left]))
        return [
            record.outcome(host, stopped if record.active else None)
            for record, host in zip(self.records, hosts, strict=True)
        ]

    def _stopped(self) -> bool:
        """Reduce the received signal and the seconds of the last piece over all processes."""
        self._raise_alike()
        seconds, signal = self.together.largest(
            [self.pieces.seconds, float(self.interruption.signal or 0)]
        )
        self.pieces.note(seconds)
        if signal:
            self.interruption.signal = int(signal)
        return bool(signal)

    def _raise_alike(self) -> None:
        """Raise a write error in all processes, since the others would wait for the failed one."""
        (failed,) = self.together.largest([float(self.trouble is not None)])
        if self.trouble is not None:
            raise self.trouble
        if failed:
            raise Elsewhere("the first process cannot go on: see what it says.")

    def _stop_line(self, steps: Sequence[int]) -> str:
        step = " to ".join(map(str, sorted({min(steps), max(steps)})))
        return (
            f"stopped by {self.interruption.name} after step {step} of {self.total_steps};"
            " nothing is lost: the same command goes on from here."
        )

    def _build(self) -> None:
        task, plan = self.task, self.plan
        axis_name = None if self.arrangement.apart else parallel.AXIS
        common: dict[str, Any] = dict(
            axis_name=axis_name,
            accumulate=plan.accumulate,
            augment=task.augment,
            prepare=task.prepare,
            mix=task.mix,
            progress_at=self.clocks.progress_at,
            average=plan.average,
        )
        source = self._feed(task.train)

        def runner(objective: Any, reduction: str) -> Runner:
            step = make_train_step(task.forward, objective, task.tx, reduction=reduction, **common)
            return source.training(step, accumulate=plan.accumulate)

        self.runner = self.warm_up_runner = runner(task.objective, task.reduction)
        if plan.warm_up_epochs:
            self.warm_up_runner = runner(task.warm_up_objective, task.warm_up_reduction)
        # The training set may be evaluated too; share its feed.
        feeds = {
            name: source if examples is task.train else self._feed(examples)
            for name, examples in task.evaluated.items()
        }
        size = plan.eval_batch_size or plan.batch_size
        self.measure = Measuring(task, feeds, size, self.arrangement, axis_name)

    def _feed(self, source: Source) -> Feed:
        return feed(
            source,
            self.arrangement,
            resident_bytes=self.plan.resident_bytes,
            threads=self.plan.threads or None,
        )

    # ------------------------------------------------------------------------------------------
    # Training.

    def _piece(self, states: PyTree) -> PyTree:
        """Train for a few seconds at most, then evaluate and save what is due."""
        active = [number for number, record in enumerate(self.records) if record.active]
        runners = {number: self._begin(number) for number in active}
        at_stop: list[int] = []
        self.pieces.begin()
        for runner in dict.fromkeys((self.warm_up_runner, self.runner)):
            # Runs stopped at different steps may resume in different phases of the warm-up.
            members = [number for number in active if runners[number] is runner]
            if members:
                states, stopped = self._stretch(states, runner, members)
                at_stop += stopped
        if at_stop:
            states = self._at_stop(states, at_stop)
        within = self._to_save(states, [number for number in active if number not in at_stop])
        for number, host in within.items():
            self.records[number].begin_to_save(host, self.epoch_steps)
        for number in active:
            record = self.records[number]
            if record.failed and len(self.records) > 1:
                self.console.say(record.called + record.failed)
            if not record.active:
                runners[number].end(number)
        return states

    def _to_save(
        self,
        states: PyTree,
        among: Sequence[int],
        *,
        at_stop: bool = False,
        better: Collection[int] = (),
    ) -> dict[int, PyTree]:
        """Copy the states to save now to the host, in process 0."""
        now = time.monotonic()

        def standing(number: int) -> due.Standing:
            record = self.records[number]
            ended, seconds = record.ledger.done, now - record.last_save
            failed = bool(record.failed)
            return due.Standing(record.step, failed, at_stop, number in better, ended, seconds)

        saved = [n for n in among if due.is_saved(standing(n), self.plan, self.epoch_steps)]
        if not (saved and self.together.leads):
            return dict.fromkeys(saved)
        hosts = self.arrangement.fetch(states)
        return {number: hosts[number] for number in saved}

    def _stretch(
        self, states: PyTree, runner: Runner, members: Sequence[int]
    ) -> tuple[PyTree, list[int]]:
        """Run the next steps of some runs; return the states and the runs that reached a stop."""
        starts, stops = [0] * len(self.records), [0] * len(self.records)
        for number in members:
            step = self.records[number].step
            starts[number] = step % self.epoch_steps
            end = min(step + self.pieces.size, self._next_stop(step))
            stops[number] = starts[number] + end - step
        if not self.sized:
            self._say_memory(runner, states)
        began = time.monotonic()
        states, measured = runner(states, starts, stops)
        self._complete()
        found = runner.measured_in(measured, starts, stops)
        seconds = time.monotonic() - began
        self.pieces.took(max(stops[n] - starts[n] for n in members), seconds)
        at_stop = []
        finite = self.arrangement.fetch(self.all_finite(states))
        for number in members:
            record, new = self.records[number], found[number]
            stop = record.step + stops[number] - starts[number]
            accepted = self._is_finite(record, new, starts[number])
            if accepted and not finite[number]:  # fetch the values to name the first wrong one
                accepted = record.accepts(self.arrangement.fetch(values_of(states))[number], stop)
            if accepted:
                record.add(new, seconds / len(members))
                if stop == self._next_stop(record.step):
                    at_stop.append(number)
                record.step = stop
        mass = sum(float(new["weight"][-1]) for new in found if len(new.get("weight", ())))
        loss = sum(float(new["loss"][-1]) for new in found if len(new.get("loss", ())))
        self.console.advance(sum(record.step for record in self.records), loss / max(mass, 1))
        return states, at_stop

    def _say_memory(self, runner: Runner, states: PyTree) -> None:
        self.sized = True
        sharing = self.arrangement.sharing
        need = memory.Need(runner.compiled(states), -(-self.plan.batch_size // sharing))
        (used,) = self.together.largest([-memory.free(self.arrangement.devices)])
        text = need.check(-used, sharing)
        self.console.say(text)
        for record in self.records:
            if record.active:
                record.note(text)

    def _begin(self, number: int) -> Runner:
        """Start the epoch of a run if it has not started; return the runner of its steps."""
        record = self.records[number]
        epoch, offset = divmod(record.step, self.epoch_steps)
        warming = epoch < self.plan.warm_up_epochs
        runner = self.warm_up_runner if warming else self.runner
        if self.begun.get(number) != epoch:
            seed = record.run.seed
            order = in_batches(
                shuffled(len(self.task.train), seed, epoch),
                self.plan.batch_size,
                multiple=self.arrangement.sharing,
                accumulate=self.plan.accumulate,
                drop_last=self.plan.drop_last,
            )
            runner.begin(order, offset, Draw(seed, epoch), run=number)
            self.begun[number] = epoch
        return runner

    def _next_stop(self, step: int) -> int:
        epoch_end = (step // self.epoch_steps + 1) * self.epoch_steps
        every = self.plan.eval_every_steps or self.epoch_steps
        return min(epoch_end, (step // every + 1) * every)

    def _is_finite(self, record: Record, found: Mapping[str, np.ndarray], offset: int) -> bool:
        """Check the losses of the last steps; freeze and report a run whose loss is not finite."""
        wrong = ~(np.isfinite(found["loss"]) & np.isfinite(found["gradient_norm"]))
        if not wrong.any():
            return True
        first = int(np.argmax(wrong))
        epoch = record.step // self.epoch_steps
        what = "loss" if not math.isfinite(found["loss"][first]) else "gradient of the loss"
        numbers = shuffled(len(self.task.train), record.run.seed, epoch)
        start = (offset + first) * self.plan.batch_size
        batch = numbers[start : start + self.plan.batch_size].tolist()
        shown = ", ".join(map(str, batch[:20])) + (", ..." if len(batch) > 20 else "")
        if label := self._label_out_of_range(batch, Draw(record.run.seed, epoch)):
            record.fail(
                f"{label}; {record.last_good()}: mend its label, or leave the example out, with"
                " data.subset, or with weight 0 in a loop of your own."
            )
            return False
        record.fail(
            f"the {what} is not finite at step {record.step + first} (epoch {epoch}), on the"
            f" training examples {shown}; {record.last_good()}: lower the learning rate, or look at"
            " these examples."
        )
        return False

    def _label_out_of_range(self, batch: Sequence[int], draw: Draw) -> str:
        """Describe the first label outside the classes in a batch; "" if there is none."""
        labels = np.asarray(read(self.task.train, np.asarray(batch), draw).labels)
        outside = (labels < 0) | (labels >= self.task.num_classes)
        if not outside.any():
            return ""
        row, *_ = first = tuple(np.argwhere(outside)[0])
        return (
            f"the training example {batch[row]} has the label {labels[first]}, and the classes are"
            f" 0 to {self.task.num_classes - 1}"
        )

    # ------------------------------------------------------------------------------------------
    # Between stretches.

    def _at_stop(self, states: PyTree, at_stop: Sequence[int]) -> PyTree:
        """Update objectives, evaluate, and queue checkpoints for writing."""
        every = self.plan.eval_every_steps or self.epoch_steps
        steps = {number: self.records[number].step for number in at_stop}
        ended = [number for number in at_stop if steps[number] % self.epoch_steps == 0]
        for number in ended:
            self.begun.pop(number)
        states = self._tick("epoch", states, dict.fromkeys(ended, NOTHING))
        measured_now = [n for n in at_stop if steps[n] % every == 0 or steps[n] == self.total_steps]
        better: set[int] = set()
        if measured_now:
            began = time.monotonic()
            found = self.measure(states, measured_now)
            seconds = (time.monotonic() - began) / len(measured_now)
            evidence = {number: measured.evidence for number, measured in found.items()}
            states = self._tick("validation", states, evidence)
            loss_states = self.arrangement.fetch(states.loss_state)
            for number, measured in found.items():
                record, tables = self.records[number], {}
                row = record.row(self.epoch_steps, self.task.learning_rate, measured.row, seconds)
                about = {"step": record.step}
                if table := self.measure.table(loss_states[number], measured.evidence):
                    tables[LOSS_STATE] = about | table
                if measured.norms:
                    more = {"epoch": row["epoch"], "edges": EDGES, **measured.norms}
                    tables[GRADIENT_NORMS] = about | more
                last = record.step == self.total_steps
                if record.evaluated(row, tables, self.measure.chooses, last=last):
                    better.add(number)
        # `_complete` writes the checkpoints, and then the rows, during the next piece.
        self.pending = self._to_save(states, at_stop, at_stop=True, better=better), measured_now
        return states

    def _complete(self) -> None:
        """Write the queued checkpoints and rows of the last stop, while the devices run."""
        (hosts, evaluated), self.pending = self.pending, ({}, ())
        if self.trouble is not None:  # an earlier write has failed
            return
        try:
            for number, host in hosts.items():
                self.records[number].begin_to_save(host, self.epoch_steps)
            for number in hosts:
                self.records[number].wait()
            rows: dict[int, list[Row]] = {}
            for number in evaluated:
                row = self.records[number].write()
                rows.setdefault(row["step"], []).append(row)
        except Exception as error:  # `_raise_alike` raises it in all processes
            self.trouble = error
            return
        for same in rows.values():
            self.console.say(mean_line(same, len(self.records)))

    def _tick(self, clock: str, states: PyTree, evidence: Mapping[int, Any]) -> PyTree:
        """Update the objective state of the runs whose clock ticked."""
        told = {n: seen for n, seen in evidence.items() if self.clocks.serves(self.records[n].step)}
        if self.task.objective.clock != clock or not told:
            return states
        loss_states = self.arrangement.fetch(states.loss_state)
        for number, seen in told.items():
            now = self.clocks.progress_at(self.records[number].step)
            loss_states[number] = self.clocks.update(loss_states[number], seen, now)
        return states._replace(loss_state=self.arrangement.place(loss_states))


class _Clocks:
    """The steps at which the state of an objective is updated, and the progress passed to it."""

    def __init__(self, objective: Any, plan: Plan, epoch_steps: int) -> None:
        self._plan = plan
        self._epoch_steps = epoch_steps
        self.update = jax.jit(objective.update)

    def progress_at(self, step: Any) -> Progress:
        """Return the training progress after a number of steps."""
        return Progress(step, step // self._epoch_steps, self._plan.num_epochs)

    def serves(self, step: int) -> bool:
        """Return whether the objective is in use after this step, that is, after the warm-up."""
        return step // self._epoch_steps >= self._plan.warm_up_epochs


class _Pieces:
    """The number of steps in a piece, adapted to the duration of the last piece."""

    def __init__(self) -> None:
        self.size = 1
        self.begin()

    def begin(self) -> None:
        """Start timing a piece."""
        self.steps, self.seconds = 0, 0.0

    def took(self, steps: int, seconds: float) -> None:
        """Record the duration of steps in this process."""
        self.steps = max(self.steps, steps)
        self.seconds += seconds

    def note(self, seconds: float) -> None:
        """Adapt the size to `PIECE_SECONDS`; grow at most 64-fold, as the first steps compile."""
        if self.steps:
            wanted = self.steps * PIECE_SECONDS / max(seconds, 1e-6)
            self.size = max(1, int(min(wanted, 64 * max(self.size, 1))))


def last_table(folder: Path | str) -> str:
    """Format the newest table of the objective's state in a folder; "" if there is none."""
    rows = read_rows(Path(folder) / LOSS_STATE)
    return table_text({k: v for k, v in rows[-1].items() if k != "step"}) if rows else ""
