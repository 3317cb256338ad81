"""Train networks on random images for an epoch, with calib_jax's programs and with PyTorch."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from calib_jax import data, losses, models, train
from calib_jax.core import InMemory
from calib_jax.data import images
from experiments.benchmarks import programs

SHAPES = {"mlp": (8, 8, 1), "lenet5": (28, 28, 1)}  # Of an image; other networks define theirs.


@dataclasses.dataclass(frozen=True)
class Work:
    """A network with the papers' optimizer, and data for an epoch of `steps` steps."""

    model: str
    batch_size: int  # Over all devices.
    steps: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # Of the model.
    stored: bool = False  # Whether images are bytes, which the device normalizes.
    augmented: bool = False  # Whether the device crops and flips them.

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an image."""
        return SHAPES.get(self.model) or tuple(self.module().example_shape())

    @functools.cached_property
    def tx(self) -> Any:
        """The optimizer of the papers' recipe."""
        return train.optimizer("sgd", 0.1, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)

    def source(self, count: int | None = None) -> InMemory:
        """Draw random images and labels, by default as many as an epoch has."""
        count = self.batch_size * self.steps if count is None else count
        draw, shape = np.random.default_rng(0), (count, *self.shape)
        images = draw.integers(256, size=shape) if self.stored else draw.normal(size=shape)
        dtype = np.uint8 if self.stored else np.float32
        return InMemory(images.astype(dtype), draw.integers(10, size=count).astype(np.int32))

    def module(self, axis_name: str | None = None) -> Any:
        """Build the network; batch norm reduces over all devices of the axis."""
        made = models.named(self.model, **self.options)
        return made.clone(axis_name=axis_name) if hasattr(made, "axis_name") else made

    @functools.cached_property
    def init(self) -> Any:
        """Initialize the variables from a key."""
        example, network = np.zeros((1, *self.shape), np.float32), self.module()
        return jax.jit(lambda key: network.init(key, example, train=False))

    def state(self, objective: Any, seed: int = 0) -> train.TrainState:
        """Return the state before the first step."""
        return train.create(self.init(jax.random.key(seed)), objective, self.tx, 10, seed)

    def step(self, objective: Any, axis_name: str | None = None) -> Any:
        """Build the training step."""
        options: dict[str, Any] = {}
        if self.stored:
            options["prepare"] = images.normalised(images.CIFAR10)
        if self.augmented:
            options["augment"] = data.compose(data.random_crop(padding=4), data.random_flip())
        forward = train.linen(self.module(axis_name))
        return train.make_train_step(forward, objective, self.tx, axis_name=axis_name, **options)


class Epochs:
    """Train runs with one compiled program; a call trains each run for an epoch, and waits.

    Args:
      work: the network and the data.
      objective: its loss; cross-entropy by default.
      groups: seeds of the runs. Runs of a group train together in one program; groups have equal
        sizes and train one after another with the same program.
      feed: `train.Resident` compiles the loop over steps, `train.Streamed` a single step.
      over: how the runs of a group are arranged on the devices.
    """

    def __init__(
        self,
        work: Work,
        objective: Any | None = None,
        *,
        groups: Sequence[Sequence[int]] = ((0,),),
        feed: Any = train.Resident,
        over: str = "map",
    ) -> None:
        objective = losses.objective("cross_entropy") if objective is None else objective
        self.work, self._groups = work, groups
        self.arrangement = train.Arrangement(jax.devices(), len(groups[0]), over)
        axis_name = None if self.arrangement.apart else train.AXIS
        source, place = work.source(), self.arrangement.place
        self._runner = feed(source, self.arrangement).training(work.step(objective, axis_name))
        split: dict[str, Any] = {"multiple": self.arrangement.sharing}
        self._orders = {
            seed: train.in_batches(train.shuffled(len(source), seed, 0), work.batch_size, **split)
            for group in groups
            for seed in group
        }
        self.states = [place([work.state(objective, seed) for seed in group]) for group in groups]
        self._begin(0)
        began = time.perf_counter()
        compiled = self._runner.compiled(self.states[0])
        self.about: dict[str, Any] = {"compile_seconds": time.perf_counter() - began}
        self.about["memory"] = programs.memory(compiled)

    def _begin(self, number: int) -> None:
        for run, seed in enumerate(self._groups[number]):
            self._runner.begin(self._orders[seed], 0, run=run)

    def __call__(self) -> None:
        """Train every run for an epoch, and wait."""
        for number, group in enumerate(self._groups):
            self._begin(number)
            starts, stops = ([steps] * len(group) for steps in (0, self.work.steps))
            self.states[number], measured = self._runner(self.states[number], starts, stops)
            self._runner.measured_in(measured, starts, stops)
            jax.block_until_ready(self.states[number])


class Peer:
    """PyTorch in a separate process, so that it shares no threads or memory with JAX.

    Args:
      python: a Python that has PyTorch; "" is the current one.
      loops: the arguments of `torch_loop.loop`, by name.
      environment: further variables of the process.
    """

    def __init__(self, python: str, loops: dict[str, dict[str, Any]], **environment: str) -> None:
        paths = [str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [
                python or sys.executable,
                "-m",
                "experiments.benchmarks.torch_loop",
                json.dumps(loops),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | environment,
        )
        self.memory: dict[str, int | None] = {}
        self.about: dict[str, Any] = self._answer()

    def epoch(self, name: str) -> None:
        """Train a loop for an epoch, and wait for its reply."""
        assert self._process.stdin
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        self.memory[name] = self._answer()["memory"]

    def _answer(self) -> Any:
        assert self._process.stdout
        if line := self._process.stdout.readline():
            return json.loads(line)
        self.close()
        raise RuntimeError(f"PyTorch ended with code {self._process.returncode}; see above.")

    def close(self) -> None:
        """Close the input of the process, which ends it."""
        self._process.communicate(timeout=20)
