"""The loop: one for every objective, and nothing that was finished is lost.

    steps -> (epoch's end: clock "epoch") -> (evaluation: clock "validation") -> checkpoint -> row

Training is cut into stretches between evaluations, and these into pieces of a few seconds,
so that a signal is heard. A checkpoint is written, and its row logged, while the device does the
next piece; a row appears only when its checkpoint is safe. What a run computes depends on its
config alone: not on where it was cut, and bit for bit not on whether it was stopped in between.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from calib_jax.core import checks
from calib_jax.core.examples import Draw, Source
from calib_jax.core.progress import Progress
from calib_jax.core.statistics import NOTHING
from calib_jax.core.types import Array, PyTree
from calib_jax.train import last_layer, parallel
from calib_jax.train.checkpoint import Checkpoints, differences
from calib_jax.train.feeding import Feed, Runner, feed
from calib_jax.train.forward import Forward
from calib_jax.train.interruption import Interruption, noted
from calib_jax.train.journal import (
    GRADIENT_NORMS,
    LOSS_STATE,
    Journal,
    Row,
    read_rows,
    table_text,
)
from calib_jax.train.last_layer import EDGES, LastLayer
from calib_jax.train.lock import only_one
from calib_jax.train.ordering import in_batches, shuffled, steps_per_epoch
from calib_jax.train.parallel import Devices
from calib_jax.train.state import TrainState
from calib_jax.train.step import REDUCTIONS, Mix, identity, make_eval_step, make_train_step

# A piece of work after which signals are looked at, in seconds. Every call of a program allocates
# its memory anew: 70 ms for a small ResNet on a CPU, so pieces of one second would cost 7 %.
PIECE = 4.0
CHECKPOINTS = "checkpoints"


class NonFinite(ArithmeticError):
    """The loss or its gradient became NaN or infinite."""


class CannotWrite(OSError):
    """The folder of a run cannot be written to."""


class AnotherConfig(ValueError):
    """The folder holds a run of another config."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, as values.

    Attributes:
      forward: of the network.
      objective: the loss.
      tx: the optimiser.
      metrics: by name, for evaluation; each has `stat` and `value`.
      train: what is trained on.
      evaluated: by name, "validation" first: it feeds the objective and chooses checkpoints.
      num_classes: for the objective.
      reduction: "sum" or "mean" over a batch.
      warm_up_objective: trained instead of `objective` in the first epochs, by `warm_up_epochs`;
        one without state.
      warm_up_reduction: of it.
      augment, prepare, mix: as in `make_train_step`.
      learning_rate: of a step, for the log.
      last_layer: is looked at in evaluation, if given.
    """

    forward: Forward
    objective: Any
    tx: optax.GradientTransformation
    metrics: Mapping[str, Any]
    train: Source
    evaluated: Mapping[str, Source]
    num_classes: int
    reduction: str = "mean"
    warm_up_objective: Any = None
    warm_up_reduction: str = "mean"
    augment: Callable[[Array, PyTree], PyTree] | None = None
    prepare: Callable[[PyTree], PyTree] = identity
    mix: Mix | None = None
    learning_rate: Callable[[int], Any] | None = None
    last_layer: LastLayer | None = None

    def __post_init__(self) -> None:
        for name in ("reduction", "warm_up_reduction"):
            checks.one_of(name, getattr(self, name), REDUCTIONS)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long, and how often what.

    Attributes:
      num_epochs: planned.
      batch_size: of a step, over all devices.
      seed: of the order of examples.
      drop_last: leave out an epoch's last, smaller batch.
      accumulate: microbatches of a step.
      warm_up_epochs: of the warm-up objective; the clocks of the objective begin to tick when
        what they set is used.
      eval_every_steps: evaluations apart; 0 is once at every epoch's end.
      eval_batch_size: 0 is that of training.
      resident_bytes: up to this size, examples in memory move to the devices.
      threads: that read examples which are not in memory; 0 is one for each core.
      keep: checkpoints that are kept, beside the best.
      checkpoint_every_epochs: epochs apart; the best and the last are always saved. 0: only these.
      checkpoint_every_minutes: also within an epoch, where it is long.
      keep_every_epochs: save these, too, and keep them for good; 0 is none.
      best: metrics of the validation set, "min" or "max": for each the best checkpoint is kept.
      average: decay of moving averages of the weights and the running statistics, which are then
        what is evaluated; 0 is none. The state must have been made with `averaged=True`.
      patience: stop when this many evaluations brought no better `patience_for`; 0 is never.
      patience_for: one of `best`.
    """

    num_epochs: int
    batch_size: int
    seed: int = 0
    drop_last: bool = False
    accumulate: int = 1
    warm_up_epochs: int = 0
    eval_every_steps: int = 0
    eval_batch_size: int = 0
    resident_bytes: int = 2**30
    threads: int = 0
    keep: int = 2
    checkpoint_every_epochs: int = 1
    checkpoint_every_minutes: float = 10.0
    keep_every_epochs: int = 0
    best: Mapping[str, str] = dataclasses.field(default_factory=dict)
    average: float = 0.0
    patience: int = 0
    patience_for: str = "nll"

    def __post_init__(self) -> None:
        for name in ("num_epochs", "batch_size", "accumulate", "keep"):
            checks.at_least(name, getattr(self, name), 1)
        for field in dataclasses.fields(self):
            if isinstance(getattr(self, field.name), int | float):
                checks.at_least(field.name, getattr(self, field.name), 0)
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"accumulate={self.accumulate} makes more parts than a batch has examples,"
                f" {self.batch_size}."
            )
        checks.between("average", self.average, 0, 1)
        for name, direction in self.best.items():
            checks.one_of(f"best[{name!r}]", direction, ("min", "max"))
        if self.patience:
            checks.one_of("patience_for", self.patience_for, self.best)


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
      state: the train state, on the host.
      step: steps done.
      finished: whether all that was planned was done.
      stopped_by: the signal, if one came.
      already: whether it had been finished before.
      best: by metric, the step, epoch and value of the best evaluation.
    """

    state: PyTree
    step: int
    finished: bool
    stopped_by: int | None
    already: bool
    best: dict[str, dict[str, float]]


def fit(
    folder: Path | str,
    state: TrainState,
    task: Task,
    plan: Plan,
    *,
    config: Mapping[str, Any] | None = None,
    free: Collection[str] = (),
    environment: Mapping[str, Any] | None = None,
    devices: Devices | None = None,
    quiet: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
) -> Outcome:
    """Train, or go on with what stands in the folder.

    Args:
      folder: for checkpoints and logs; made if it is not there.
      state: before the first step, from `create`.
      task: what is trained.
      plan: how long, and how often what.
      config: JSON that identifies the run: a folder with another one is refused.
      free: its keys that may change in the middle of a run, since results do not depend on them.
      environment: JSON about the machine and the versions; noted each time the run is started.
      devices: where; all of this process by default.
      quiet: say nothing; log.txt has it all the same.
      progress: a bar, on a terminal.
      tensorboard: write events, too.
    """
    if bool(state.average) != (plan.average > 0):
        raise ValueError(
            f"average={plan.average}, and the state has {'' if state.average else 'no '}averages:"
            " make it by create(..., averaged=plan.average > 0)."
        )
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise CannotWrite(f"{folder} cannot be written to: {error.strerror}.") from error
    devices = parallel.local_devices() if devices is None else devices
    with only_one(folder), noted() as interruption:
        loop = _Loop(folder, task, plan, dict(config or {}), set(free), devices, interruption)
        loop.journal = Journal(
            folder,
            total_steps=loop.total_steps,
            progress=progress,
            tensorboard=tensorboard,
            quiet=quiet,
        )
        try:
            return loop.run(state, environment or {})
        finally:
            loop.journal.close()
            loop.checkpoints.close()


@dataclasses.dataclass
class _Ledger:
    """What the loop knows beside the train state; it is saved with it, as JSON.

    Attributes:
      totals: of training since the last evaluation, added up step by step, so that they do not
        depend on where training was cut.
      steps: how many steps that was.
      seconds: how long they took, also before the run was resumed.
      best: see `Outcome`.
      waited: evaluations without a better `patience_for`.
      row, tables: what the last evaluation logged; tables by the name of their file.
      done: whether the run has ended.
    """

    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    best: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    waited: int = 0
    row: Row | None = None
    tables: dict[str, Row] = dataclasses.field(default_factory=dict)
    done: bool = False


class _Loop:
    def __init__(
        self,
        folder: Path,
        task: Task,
        plan: Plan,
        config: dict[str, Any],
        free: set[str],
        devices: Devices,
        interruption: Interruption,
    ) -> None:
        self.folder = folder
        self.task = task
        self.plan = plan
        self.config = config
        self.free = free
        self.devices = devices
        self.interruption = interruption
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, keep=plan.keep)
        self.journal: Journal
        self.ledger = _Ledger()
        self.epoch_steps = steps_per_epoch(
            len(task.train), plan.batch_size, drop_last=plan.drop_last
        )
        self.total_steps = plan.num_epochs * self.epoch_steps
        self.clocks = _Clocks(task.objective, plan, self.epoch_steps)
        self.pieces = _Pieces()
        self.pending: Callable[[], None] | None = None
        self.last_save = time.monotonic()

    # ------------------------------------------------------------------------------------------
    # Beginning and going on.

    def run(self, state: TrainState, environment: Mapping[str, Any]) -> Outcome:
        step, host = self._resumed(jax.tree.map(np.asarray, state))
        if self.ledger.done:
            self.journal.say(
                f"{self.folder} holds a finished run of {self.plan.num_epochs} epochs: nothing to"
                " do."
            )
            return Outcome(host, step, True, None, True, self.ledger.best)
        self.journal.begin(step, environment)
        state = parallel.replicate(host, self.devices)
        self._build()
        while step < self.total_steps and not self.ledger.done and not self.interruption:
            state, step = self._piece(state, step)
        self._complete()
        stopped = self.interruption.signal
        if stopped is not None and not self.ledger.done:
            self._save(step, parallel.first(state))
            self.checkpoints.wait()
            self.journal.say(
                f"stopped by {self.interruption.name} after step {step} of {self.total_steps};"
                " nothing is lost: the same command goes on from here."
            )
        host = parallel.first(state)
        return Outcome(host, step, self.ledger.done, stopped, False, self.ledger.best)

    def _resumed(self, template: PyTree) -> tuple[int, PyTree]:
        if not self.checkpoints.steps:
            self.journal.rewind(0)
            self._describe()
            return 0, template
        self._compare(self.checkpoints.about()["config"])
        saved = self.checkpoints.latest(template, say=self._warn)
        known = {field.name for field in dataclasses.fields(_Ledger)}
        if not known.issuperset(saved.about["ledger"]):
            raise AnotherConfig(
                f"{self.folder} holds a run of another version of calib_jax: go on with that one,"
                " or choose another folder."
            )
        self.ledger = _Ledger(**saved.about["ledger"])
        step = int(saved.state.step)
        self.journal.rewind(step, self.ledger.row, self.ledger.tables)
        if not self.ledger.done:
            self.journal.say(f"going on from step {step} of {self.total_steps} in {self.folder}.")
        return step, saved.state

    def _warn(self, text: str) -> None:
        self.journal.say(f"warning: {text}")

    def _compare(self, before: dict[str, Any]) -> None:
        """Refuse to go on with a run of another config."""
        fixed = (
            {key: value for key, value in config.items() if key not in self.free}
            for config in (before, self.config)
        )
        changed = differences(*fixed)
        if changed:
            said = "; ".join(changed[:5])
            said += f"; and {len(changed) - 5} more keys" if len(changed) > 5 else ""
            raise AnotherConfig(
                f"{self.folder} holds a run of another config ({said}): choose another folder, or"
                " the old values."
            )

    def _describe(self) -> None:
        """Write the config down for people; the checkpoints have it too."""
        text = json.dumps(self.config, indent=1) + "\n"
        (self.folder / "config.json").write_text(text, encoding="utf-8")

    def _build(self) -> None:
        task, plan = self.task, self.plan
        common: dict[str, Any] = dict(
            axis_name=parallel.AXIS,
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
        self.evaluators = {}
        for number, (name, examples) in enumerate(task.evaluated.items()):
            step = make_eval_step(
                task.forward,
                task.metrics,
                objective=task.objective if number == 0 else None,
                axis_name=parallel.AXIS,
                prepare=task.prepare,
                last_layer=task.last_layer,
            )
            size = plan.eval_batch_size or plan.batch_size
            # The training set may be measured, too: it is not kept twice.
            fed = source if examples is task.train else self._feed(examples)
            self.evaluators[name] = fed.evaluation(step, size)
        self.values_of = jax.jit(
            lambda stats: {name: metric.value(stats[name]) for name, metric in task.metrics.items()}
        )
        self.table_names: list[str] = []

        def table_of(loss_state: PyTree, evidence: Any) -> list[Array]:
            table = task.objective.table(loss_state, evidence)
            self.table_names = list(table)  # a dict would come back with its keys sorted
            return list(table.values())

        self.table_of = jax.jit(table_of)
        self.begun = -1

    def _feed(self, source: Source) -> Feed:
        return feed(
            source,
            self.devices,
            resident_bytes=self.plan.resident_bytes,
            threads=self.plan.threads or None,
        )

    # ------------------------------------------------------------------------------------------
    # Training.

    def _piece(self, state: TrainState, step: int) -> tuple[TrainState, int]:
        """Train for a few seconds at most, and do what is due at their end."""
        epoch, offset = divmod(step, self.epoch_steps)
        runner = self._begin(epoch, offset)
        stop = min(step + self.pieces.size, self._next_stop(step))
        began = time.monotonic()
        end = offset + stop - step
        state, measured = runner(state, offset, end)
        self._complete()
        found = runner.measured_in(measured, offset, end)
        seconds = time.monotonic() - began
        self.pieces.note(stop - step, seconds)
        self.ledger.seconds += seconds
        self._check(found, step, epoch, offset)
        self._add(found)
        self.journal.advance(stop, float(found["loss"][-1] / max(found["weight"][-1], 1)))
        if stop == self._next_stop(step):
            state = self._at_stop(state, stop)
        elif time.monotonic() - self.last_save > 60 * self.plan.checkpoint_every_minutes:
            self._save(stop, parallel.first(state))
        return state, stop

    def _begin(self, epoch: int, offset: int) -> Runner:
        warming = epoch < self.plan.warm_up_epochs
        runner = self.warm_up_runner if warming else self.runner
        if self.begun != epoch:
            examples = shuffled(len(self.task.train), self.plan.seed, epoch)
            order = in_batches(
                examples,
                self.plan.batch_size,
                multiple=len(self.devices),
                accumulate=self.plan.accumulate,
                drop_last=self.plan.drop_last,
            )
            runner.begin(order, offset, Draw(self.plan.seed, epoch))
            self.begun = epoch
        return runner

    def _next_stop(self, step: int) -> int:
        epoch_end = (step // self.epoch_steps + 1) * self.epoch_steps
        every = self.plan.eval_every_steps or self.epoch_steps
        return min(epoch_end, (step // every + 1) * every)

    def _add(self, found: Mapping[str, np.ndarray]) -> None:
        totals = self.ledger.totals
        for name, values in found.items():
            # One after another: a sum in blocks would depend on where the blocks are cut.
            added = totals.get(name, 0.0)
            for value in values.tolist():
                added += value
            totals[name] = added
        self.ledger.steps += len(found["loss"])

    def _check(self, found: Mapping[str, np.ndarray], step: int, epoch: int, offset: int) -> None:
        wrong = ~(np.isfinite(found["loss"]) & np.isfinite(found["gradient_norm"]))
        if not wrong.any():
            return
        first = int(np.argmax(wrong))
        what = "loss" if not math.isfinite(found["loss"][first]) else "gradient of the loss"
        numbers = shuffled(len(self.task.train), self.plan.seed, epoch)
        start = (offset + first) * self.plan.batch_size
        batch = numbers[start : start + self.plan.batch_size].tolist()
        shown = ", ".join(map(str, batch[:20])) + (", ..." if len(batch) > 20 else "")
        good = self.checkpoints.steps
        where = (
            f"the last good checkpoint is {self.folder / CHECKPOINTS / str(good[-1])}"
            if good
            else "there is no checkpoint yet"
        )
        raise NonFinite(
            f"the {what} is not finite at step {step + first} (epoch {epoch}), on the training"
            f" examples {shown}; {where}: lower the learning rate, or look at these examples."
        )

    # ------------------------------------------------------------------------------------------
    # Between stretches.

    def _at_stop(self, state: TrainState, step: int) -> TrainState:
        """Let the clocks tick, evaluate, and leave a checkpoint to be written."""
        every = self.plan.eval_every_steps or self.epoch_steps
        last = step == self.total_steps
        if step % self.epoch_steps == 0:
            self.begun = -1
            state = self._tick("epoch", state, step, NOTHING)
        evaluated, better = False, False
        if step % every == 0 or last:
            evaluated = True
            self.ledger.row, evidence, norms = self._evaluate(state, step)
            better = self._note_best(self.ledger.row, step)
            state = self._tick("validation", state, step, evidence)
            tables = {LOSS_STATE: self._table(state, step, evidence), GRADIENT_NORMS: norms}
            self.ledger.tables = {name: table for name, table in tables.items() if table}
            self.ledger.totals, self.ledger.steps, self.ledger.seconds = {}, 0, 0.0
            patient = not self.plan.patience or self.ledger.waited < self.plan.patience
            self.ledger.done = last or not patient
        often = self.plan.checkpoint_every_epochs, self.plan.keep_every_epochs
        due = any(epochs and step % (epochs * self.epoch_steps) == 0 for epochs in often)
        if not (due or better or self.ledger.done):
            if evaluated:
                self.journal.write(self.ledger.row or {}, self.ledger.tables)
            return state
        host, ledger = parallel.first(state), dataclasses.asdict(self.ledger)

        def complete() -> None:
            self._save(step, host, ledger)
            self.checkpoints.wait()
            if evaluated:
                self.journal.write(ledger["row"], ledger["tables"])

        self.pending = complete
        return state

    def _complete(self) -> None:
        """Do what was left from the last stop: the device is at work meanwhile."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending()

    def _tick(self, clock: str, state: TrainState, step: int, evidence: Any) -> TrainState:
        if self.task.objective.clock != clock or not self.clocks.serves(step):
            return state
        loss_state = parallel.first_on_device(state.loss_state)
        changed = self.clocks.update(loss_state, evidence, self.clocks.progress_at(step))
        return state._replace(loss_state=parallel.replicate(changed, self.devices))

    def _evaluate(self, state: TrainState, step: int) -> tuple[Row, Any, Row]:
        """Measure every data set: the row, what the objective wants, histograms of gradients."""
        began = time.monotonic()
        totals, steps = self.ledger.totals, max(self.ledger.steps, 1)
        mass = max(totals["weight"], 1e-30)
        row: Row = {
            "epoch": step / self.epoch_steps,
            "num_epochs": self.plan.num_epochs,
            "step": step,
            "train_loss": totals["loss"] / mass,
            "train_error": 1 - totals["hit"] / mass,
            "train_gradient_norm": totals["gradient_norm"] / steps,
        }
        if self.task.learning_rate is not None:
            row["learning_rate"] = float(self.task.learning_rate(step - 1))
        look = self.task.last_layer
        norms: Row = {}
        evidence: Any = NOTHING
        for number, (name, evaluate) in enumerate(self.evaluators.items()):
            stats = evaluate(state)
            evidence = stats["evidence"] if number == 0 else evidence
            values = jax.device_get(self.values_of(stats["metrics"]))
            for metric in self.task.metrics:
                row |= _numbers(f"{name}_{metric}", values[metric])
            if look is not None:
                means = look.means(stats["last_layer"])
                row |= {f"{name}_{key}": value for key, value in means.items()}
                norms[name] = last_layer.histogram(stats["last_layer"])
        if look is not None:
            head = {last_layer.HEAD: state.evaluated[0][last_layer.HEAD]}
            row["weight_norm"] = look.weight_norm(parallel.first_on_device(head))
        row["seconds"] = self.ledger.seconds
        row["evaluation_seconds"] = time.monotonic() - began
        row["examples_per_second"] = totals["weight"] / max(row["seconds"], 1e-9)
        if norms:
            norms = {"step": step, "epoch": row["epoch"], "edges": EDGES, **norms}
        return row, evidence, norms

    def _note_best(self, row: Row, step: int) -> bool:
        first = next(iter(self.evaluators), None)
        improved = set()
        for name, direction in self.plan.best.items():
            value = row[f"{first}_{name}"]
            known = self.ledger.best.get(name)
            sign = 1 if direction == "min" else -1
            if not math.isnan(value) and (known is None or sign * value < sign * known["value"]):
                self.ledger.best[name] = {"step": step, "epoch": row["epoch"], "value": value}
                improved.add(name)
        waited = 0 if self.plan.patience_for in improved else self.ledger.waited + 1
        self.ledger.waited = waited
        return bool(improved)

    def _table(self, state: TrainState, step: int, evidence: Any) -> Row:
        """Ask the objective what it has to show; most have nothing."""
        columns = self.table_of(parallel.first_on_device(state.loss_state), evidence)
        values = (np.atleast_1d(column).tolist() for column in jax.device_get(columns))
        table = dict(zip(self.table_names, values, strict=True))
        return {"step": step, **table} if table else {}

    def _save(self, step: int, host: PyTree, ledger: dict[str, Any] | None = None) -> None:
        """Begin to save; `host` must not change any more."""
        self.last_save = time.monotonic()
        ledger = dataclasses.asdict(self.ledger) if ledger is None else ledger
        kept = {int(best["step"]) for best in ledger["best"].values()}
        every = self.plan.keep_every_epochs * self.epoch_steps
        if every:
            kept |= {one for one in {*self.checkpoints.steps, step} if one % every == 0}
        if step not in self.checkpoints.steps:
            self.checkpoints.save(host, {"config": self.config, "ledger": ledger}, step, kept=kept)


def _numbers(name: str, value: Any) -> Row:
    """Name the numbers of a metric: itself, or those of its fields; arrays are left out."""
    return {
        "_".join([name, *(str(key.name) for key in path)]): float(leaf)
        for path, leaf in jax.tree.leaves_with_path(value)
        if np.ndim(leaf) == 0
    }


class _Clocks:
    """When an objective is told, and what of progress."""

    def __init__(self, objective: Any, plan: Plan, epoch_steps: int) -> None:
        self._plan = plan
        self._epoch_steps = epoch_steps
        self.update = jax.jit(objective.update)

    def progress_at(self, step: Any) -> Progress:
        """Say how far training has come after so many steps."""
        return Progress(step, step // self._epoch_steps, self._plan.num_epochs)

    def serves(self, step: int) -> bool:
        """Tell whether what is set after this step is used: not as long as it is warming up."""
        return step // self._epoch_steps >= self._plan.warm_up_epochs


class _Pieces:
    """How many steps make a piece, from how long the last one took."""

    def __init__(self) -> None:
        self.size = 1

    def note(self, steps: int, seconds: float) -> None:
        """Aim at `PIECE`; grow with care, since the first steps compile."""
        wanted = steps * PIECE / max(seconds, 1e-6)
        self.size = max(1, int(min(wanted, 64 * max(self.size, 1))))


def last_table(folder: Path | str) -> str:
    """Show the newest table of the objective's state in a folder; empty if there is none."""
    rows = read_rows(Path(folder) / LOSS_STATE)
    return table_text({k: v for k, v in rows[-1].items() if k != "step"}) if rows else ""
