"""What the training benchmark trains: a network on random images, an epoch at a time."""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax

from calib_jax import data, losses, models, train
from calib_jax.core import InMemory
from calib_jax.data import images
from experiments.benchmarks import programs, torch_worker

SHAPES = {"mlp": (8, 8, 1), "lenet5": (28, 28, 1)}  # of an image; others see 32 x 32 in colours


@dataclasses.dataclass(frozen=True)
class Work:
    """A network, its optimiser, and data for an epoch of so many steps.

    Attributes:
      model: one of calib_jax.models.
      batch_size: images of a step, over all devices.
      steps: of an epoch.
      dtype: that the network computes in.
      stored: whether images are bytes, which the device normalises.
      augmented: whether it crops and flips them, too.
    """

    model: str
    batch_size: int
    steps: int
    dtype: str = "float32"
    stored: bool = False
    augmented: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an image."""
        return SHAPES.get(self.model, (32, 32, 3))

    @property
    def images(self) -> int:
        """How many images an epoch has."""
        return self.batch_size * self.steps

    @functools.cached_property
    def tx(self) -> Any:
        """The optimiser of the papers' recipe."""
        return train.optimisers.sgd(0.1, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)

    @functools.cached_property
    def source(self) -> InMemory:
        """The images of an epoch."""
        return self.some(self.images)

    def some(self, count: int) -> InMemory:
        """Make so many images."""
        return InMemory(*torch_worker.random_images(count, self.shape, stored=self.stored))

    def module(self, axis_name: str | None) -> Any:
        """Make the network; batch norm is that of all devices of the axis."""
        made = models.named(self.model, dtype=self.dtype)
        return made.clone(axis_name=axis_name) if hasattr(made, "axis_name") else made

    @functools.cached_property
    def _init(self) -> Any:
        example = torch_worker.random_images(1, self.shape)[0]
        network = self.module(None)
        return jax.jit(lambda key: network.init(key, example, train=False))

    def state(self, objective: Any, seed: int) -> train.TrainState:
        """Make the state before the first step."""
        return train.create(self._init(jax.random.key(seed)), objective, self.tx, 10, seed)

    def step(self, objective: Any, axis_name: str | None) -> Any:
        """Make the training step."""
        options: dict[str, Any] = {}
        if self.stored:
            options["prepare"] = images.normalised(images.CIFAR10)
        if self.augmented:
            options["augment"] = data.compose(data.random_crop(padding=4), data.random_flip())
        forward = train.linen(self.module(axis_name))
        return train.make_train_step(forward, objective, self.tx, axis_name=axis_name, **options)


class Epochs:
    """Whole epochs of some runs, by one compiled program; calling it trains one and waits.

    Args:
      work: what is trained.
      objective: by which loss.
      groups: seeds of the runs. Those of a group are trained together, in one program; groups,
        which are of one size, one after another, by the same program.
      feed: `train.Resident` compiles the loop over steps, `train.Streamed` a step.
      over: how the runs of a group lie on the devices.
      devices: where; all by default.

    Attributes:
      compiled: the program.
      compile_seconds: from the first line of it to the program.
      first_call_seconds: what the first call took that trained nothing: whatever had to be
        compiled still.
    """

    def __init__(
        self,
        work: Work,
        objective: Any | None = None,
        *,
        groups: Sequence[Sequence[int]] = ((0,),),
        feed: Any = train.Resident,
        over: str = "map",
        devices: Sequence[Any] | None = None,
    ) -> None:
        objective = losses.objective("cross_entropy") if objective is None else objective
        self.work, self._groups = work, groups
        self.arrangement = train.Arrangement(devices or jax.devices(), len(groups[0]), over)
        axis_name = None if self.arrangement.apart else train.AXIS
        self._runner = feed(work.source, self.arrangement).training(work.step(objective, axis_name))
        self._orders = {
            seed: train.in_batches(
                train.shuffled(work.images, seed, 0),
                work.batch_size,
                multiple=self.arrangement.sharing,
            )
            for group in groups
            for seed in group
        }
        self.states = [
            self.arrangement.place([work.state(objective, seed) for seed in group])
            for group in groups
        ]
        self._begin(groups[0])
        began = time.perf_counter()
        self.compiled = self._runner.compiled(self.states[0])
        self.compile_seconds = time.perf_counter() - began
        began = time.perf_counter()
        self._train(0, 0)
        self.first_call_seconds = time.perf_counter() - began

    def _begin(self, group: Sequence[int]) -> None:
        for run, seed in enumerate(group):
            self._runner.begin(self._orders[seed], 0, run=run)

    def _train(self, number: int, stop: int, start: int = 0) -> None:
        starts, stops = ([bound] * len(self._groups[number]) for bound in (start, stop))
        states, measured = self._runner(self.states[number], starts, stops)
        self.states[number] = states
        self._runner.measured_in(measured, starts, stops)
        jax.block_until_ready(states)

    def __call__(self) -> None:
        """Train every run for an epoch, and wait."""
        for number, group in enumerate(self._groups):
            self._begin(group)
            self._train(number, self.work.steps)

    def in_pieces(self, steps: int, size: int) -> None:
        """Train the first run for some steps, so many at a call."""
        self._begin(self._groups[0])
        for start in range(0, steps, size):
            self._train(0, min(start + size, steps), start)

    @property
    def memory(self) -> int | None:
        """Bytes that a call needs beside what stays, by XLA's plan."""
        found = programs.memory(self.compiled)
        return None if found is None else found.temporaries + found.results - found.aliased
