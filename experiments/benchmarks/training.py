"""Time training itself: whole epochs, what is spent outside the compiled steps, losses with state.

    python -m experiments.benchmarks.training
    python -m experiments.benchmarks.training --model=mlp --steps=200 --out=training.json
    python -m experiments.benchmarks.training --peers

Random images of 32 x 32. Four tables: an epoch as one compiled loop beside the same steps called
one by one; the loop of `train.fit` with evaluation, checkpoints and logs beside its compiled
programs alone; a step with AdaFocal and with recall loss beside cross-entropy; and, with --peers,
the same network and step in PyTorch, where that is installed.
"""

import dataclasses
import importlib
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from calib_jax import losses, metrics, models, train
from calib_jax.core import InMemory
from experiments import provenance
from experiments.benchmarks import timing

_MODEL = flags.DEFINE_string("model", "resnet20", "One of calib_jax.models.")
_BATCH = flags.DEFINE_integer("batch_size", 128, "Examples of a step.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 10, "Steps of an epoch.", lower_bound=2)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "How often each is timed.", lower_bound=3)
_EPOCHS = flags.DEFINE_integer("epochs", 4, "Of train.fit, after two that compile.", lower_bound=2)
_PEERS = flags.DEFINE_bool("peers", False, "Also time PyTorch, if it is installed.")
_OUT = flags.DEFINE_string("out", None, "Write all numbers, with their provenance, to this JSON.")

METRICS = ("error", "nll", "ece", "brier", "mce", "adaptive_ece", "classwise_ece")
# At most this share of an epoch outside the compiled programs; at most this ratio of steps.
OUTSIDE, STATEFUL = 0.03, 1.02
Row = dict[str, Any]


def images(count: int) -> InMemory:
    """Make images and labels out of nothing."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(count, 32, 32, 3)).astype(np.float32)
    return InMemory(inputs, random.integers(10, size=count).astype(np.int32))


class Setting:
    """A network, its optimiser, and data."""

    def __init__(self) -> None:
        self.devices = train.local_devices()
        named = models.named(_MODEL.value)
        self.module = named.clone(axis_name=train.AXIS) if hasattr(named, "axis_name") else named
        self.tx = train.optimisers.sgd(0.1, weight_decay=5e-4, clip_norm=2.0)
        self.source = images(_BATCH.value * _STEPS.value)
        self.order = train.in_batches(
            train.shuffled(len(self.source), 0, 0), _BATCH.value, multiple=len(self.devices)
        )
        init = jax.jit(lambda key: named.init(key, self.source.inputs[:1], train=False))
        self.variables = init(jax.random.key(0))

    def state(self, objective: losses.Objective) -> Any:
        """Make the first state."""
        return train.create(self.variables, objective, self.tx, 10, 0)

    def epoch(self, objective: losses.Objective, kind: Any) -> Callable[[], Any]:
        """Make a call that trains one epoch, on the device or step by step."""
        step = train.make_train_step(
            train.linen(self.module), objective, self.tx, axis_name=train.AXIS
        )
        runner = kind(self.source, self.devices).training(step)
        held = [train.replicate(self.state(objective), self.devices)]

        def run() -> Any:
            runner.begin(self.order, 0)
            held[0], measured = runner(held[0], 0, _STEPS.value)
            runner.measured_in(measured, 0, _STEPS.value)
            return held[0].step

        return run


def _compared(task: str, calls: dict[str, Callable[[], Any]]) -> list[Row]:
    spent = timing.interleaved(calls, rounds=_ROUNDS.value, label=task)
    first = next(iter(calls))
    examples = _BATCH.value * _STEPS.value
    return [
        {
            "task": task,
            "name": name,
            "rounds": _ROUNDS.value,
            "seconds": float(np.median(spent[name])),
            "examples_per_second": examples / float(np.median(spent[name])),
            "ratio": timing.ratio(spent[name], spent[first]),
        }
        for name in calls
    ]


def epochs(setting: Setting) -> list[Row]:
    """Compare an epoch as one compiled loop with its steps one by one."""
    objective = losses.objective("cross_entropy")
    calls = {
        "one compiled loop": setting.epoch(objective, train.Resident),
        "step by step": setting.epoch(objective, train.Streamed),
    }
    if _PEERS.value and (peer := torch_epoch(setting)) is not None:
        calls["PyTorch, step by step"] = peer
    return _compared("epoch", calls)


def stateful(setting: Setting) -> list[Row]:
    """Compare objectives with a state to cross-entropy."""
    names = ("cross_entropy", "adafocal", "recall")
    return _compared(
        "objective",
        {name: setting.epoch(losses.objective(name), train.Resident) for name in names},
    )


def outside(setting: Setting) -> list[Row]:
    """Compare epochs of `train.fit` with the compiled programs that they run."""
    objective = losses.objective("adafocal")
    validation = images(max(_BATCH.value, len(setting.source) // 10))
    chosen = {name: metrics.named(name) for name in METRICS}
    forward = train.linen(setting.module)
    step = train.make_eval_step(forward, chosen, objective=objective, axis_name=train.AXIS)
    evaluate = train.Resident(validation, setting.devices).evaluation(step, _BATCH.value)
    state = train.replicate(setting.state(objective), setting.devices)
    parts = {
        "training, compiled": setting.epoch(objective, train.Resident),
        "evaluation, compiled": lambda: evaluate(state),
    }
    rows = _compared("fit", parts)
    task = train.Task(
        forward=forward,
        objective=objective,
        tx=setting.tx,
        metrics=chosen,
        train=setting.source,
        evaluated={"validation": validation},
        num_classes=10,
    )
    plan = train.Plan(
        num_epochs=_EPOCHS.value + 2, batch_size=_BATCH.value, best={"nll": "min", "error": "min"}
    )
    ends: list[float] = []

    def rate(step: int) -> float:  # the log asks for it once an epoch
        ends.append(time.perf_counter())
        return 0.1

    with tempfile.TemporaryDirectory() as folder:
        train.fit(
            folder,
            setting.state(objective),
            dataclasses.replace(task, learning_rate=rate),
            plan,
            devices=setting.devices,
            quiet=True,
        )
    whole = float(np.median(np.diff(ends)[1:]))  # the first has compiled what follows evaluation
    compiled = sum(row["seconds"] for row in rows)
    share = 1 - compiled / whole
    more = {"task": "fit", "name": "an epoch of train.fit", "rounds": len(ends) - 2}
    return [*rows, {**more, "seconds": whole, "outside": share, "target": OUTSIDE}]


def torch_epoch(setting: Setting) -> Callable[[], Any] | None:
    """Make a call that trains the same small ResNet for an epoch in PyTorch."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    if _MODEL.value != "resnet20":
        return None
    nn: Any = torch.nn

    class Block(nn.Module):
        def __init__(self, width: int, out: int, stride: int) -> None:
            super().__init__()
            self.stride, self.more = stride, out - width
            self.one = nn.Conv2d(width, out, 3, stride, 1, bias=False)
            self.two = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.norms[0](self.one(x)))
            y = self.norms[1](self.two(y))
            x = x[:, :, :: self.stride, :: self.stride]
            return torch.relu(y + nn.functional.pad(x, (0, 0, 0, 0, 0, self.more)))

    narrow, middle, wide = (16, 16, 1), (32, 32, 1), (64, 64, 1)
    shapes = [narrow, narrow, narrow, (16, 32, 2), middle, middle, (32, 64, 2), wide, wide]
    body = [Block(*shape) for shape in shapes]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    network = nn.Sequential(*stem, *body, *head)
    tx = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    inputs = torch.tensor(np.moveaxis(setting.source.inputs, -1, 1).copy())
    labels = torch.tensor(setting.source.labels, dtype=torch.long)

    def run() -> Any:
        for numbers in setting.order.examples:
            tx.zero_grad()
            nn.functional.cross_entropy(network(inputs[numbers]), labels[numbers]).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 2.0)
            tx.step()

    return run


def line(row: Row) -> str:
    """Lay one result out as text."""
    text = f"  {row['name']:26s} {row['seconds']:9.3f} s"
    if "examples_per_second" in row:
        text += f" {row['examples_per_second']:10,.0f} examples/s"
    if "ratio" in row:
        ratio = row["ratio"]
        text += f"  {ratio['median']:6.3f}x [{ratio['low']:.3f}, {ratio['high']:.3f}]"
    if "outside" in row:
        missed = " !" if row["outside"] > row["target"] else ""
        share = f"{row['outside']:.1%}"
        text += f"  {share} outside the compiled programs, target {OUTSIDE:.0%}{missed}"
    return text


def main(_: list[str]) -> None:
    """Run, print the tables, write the JSON."""
    logging.set_verbosity(logging.ERROR)  # checkpoints tell much
    setting = Setting()
    print(f"{_MODEL.value}: epochs of {_STEPS.value} steps of {_BATCH.value} images")
    results = []
    for part in (epochs, stateful, outside):
        rows = part(setting)
        results += rows
        print(rows[0]["task"], *map(line, rows), sep="\n", flush=True)
    if _OUT.value:
        about = {"model": _MODEL.value, "batch_size": _BATCH.value, "steps": _STEPS.value}
        found = {"provenance": provenance.describe(), "setting": about, "results": results}
        with open(_OUT.value, "w") as file:
            json.dump(found, file, indent=1)
        print(f"written to {_OUT.value}")


if __name__ == "__main__":
    app.run(main)
