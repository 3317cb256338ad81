"""Train networks on random images for an epoch, with calib_jax's programs and with PyTorch."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from calib_jax import data, models, train
from calib_jax.core import InMemory
from calib_jax.data.images import image_sets
from calib_jax.data.text import trees
from calib_jax.train.devices import memory
from configs import camvid_deeplab_small, multi30k_transformer_small, sst_tree_lstm
from configs.base import base
from experiments.benchmarks import programs, random_pairs, random_trees
from experiments.running import building

LEAVES = 56  # words to which a tree is padded


@dataclasses.dataclass(frozen=True)
class Work:
    """The papers' recipe for a network and a loss, on random images for `steps` steps an epoch."""

    model: str
    batch_size: int  # Summed over all devices.
    steps: int
    loss: str = "cross_entropy"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # Options of the model.
    stored: bool = False  # Whether images are bytes, which the device normalizes.
    augmented: bool = False  # Whether the device crops and flips them.
    over: str = "map"  # How several runs are arranged on the devices.

    def build(self) -> building.Experiment:
        """Build the network, the loss, the optimizer and the data."""
        config = base(self.loss)
        config.model.name, config.model.options = self.model, ConfigDict(self.options)
        config.batch_size, config.run.over = self.batch_size, self.over
        config.precision = "tensorfloat32"  # as PyTorch's loop, on a GPU
        config.augment, size = self.augmented, self.batch_size * self.steps
        validation = self._images(max(size // 10, self.batch_size, 100))
        dataset = _dataset(10, self._images(size), validation, augment=image_sets.crop_and_flip)
        if self.stored:
            dataset = dataclasses.replace(dataset, prepare=image_sets.prepare_cifar10)
        return building.assemble(config, dataset)

    def _images(self, count: int) -> InMemory:
        example = models.named(self.model, **self.options).example_inputs(1)
        shape = (count, *example.shape[1:])
        draw = np.random.default_rng(0)
        images = draw.integers(256, size=shape) if self.stored else draw.normal(size=shape)
        dtype = np.uint8 if self.stored else np.float32
        return InMemory(images.astype(dtype), draw.integers(10, size=count).astype(np.int32))


@dataclasses.dataclass(frozen=True)
class TreeWork(Work):
    """The recipe of the Tree-LSTM on random trees, for `steps` steps an epoch."""

    def build(self) -> building.Experiment:
        """Build the network, the loss, the optimizer and the data."""
        config = sst_tree_lstm.get_config(self.loss)
        config.batch_size = self.batch_size
        drawn = random_trees.draw(self.batch_size * self.steps)
        arrays = trees.padded([_tree(tree) for tree in drawn], LEAVES)
        words = np.zeros((len(drawn), LEAVES), np.int32)
        for row, tree in enumerate(drawn):
            words[row, : len(tree.words)] = tree.words
        inputs = {"words": words, "children": arrays.children}
        part = InMemory(inputs, arrays.labels, arrays.labeled.astype(np.float32))
        return building.assemble(config, _dataset(random_trees.CLASSES, part, part))


@dataclasses.dataclass(frozen=True)
class PairWork(Work):
    """The recipe of the small Transformer on random sentence pairs, for `steps` steps an epoch."""

    def build(self) -> building.Experiment:
        """Build the network, the loss, the optimizer and the data."""
        config = multi30k_transformer_small.get_config(self.loss)
        config.batch_size = self.batch_size
        pairs = random_pairs.draw(self.batch_size * self.steps)
        weights = (pairs.labels != random_pairs.PADDING).astype(np.float32)
        inputs = {"source": pairs.source, "target": pairs.target}
        part = InMemory(inputs, pairs.labels, weights)
        return building.assemble(config, _dataset(random_pairs.WORDS, part, part))

    @property
    def tokens(self) -> float:
        """The mean number of target tokens of a step."""
        labels = random_pairs.draw(self.batch_size * self.steps).labels
        return float(np.sum(labels != random_pairs.PADDING)) / self.steps


def _dataset(classes: int, train: InMemory, others: InMemory, **functions: Any) -> data.Dataset:
    """Build a data set of random examples, whose validation and test set are the same."""
    return data.Dataset(
        name="random",
        class_names=tuple(map(str, range(classes))),
        train=train,
        validation=others,
        test=others,
        description="Random examples.",
        **functions,
    )


class Translation:
    """Beam search with the untrained small Transformer; a call translates all sentences."""

    def __init__(self, sentences: int, *, beam: int, length: int) -> None:
        self._source = random_pairs.draw(sentences).source
        options = dict(multi30k_transformer_small.get_config().model.options)
        self._network = models.transformer(num_classes=random_pairs.WORDS, **options)
        example = self._network.example_inputs()
        self._variables = self._network.init(jax.random.key(0), example, train=False)
        self._options = {"beam": beam, "length": length}

    def __call__(self) -> None:
        """Translate, and wait."""
        jax.block_until_ready(
            models.translate(self._network, self._variables, self._source, **self._options)
        )


HEIGHT, WIDTH = 120, 160  # of images whose pixels have classes


@dataclasses.dataclass(frozen=True)
class PixelWork(Work):
    """The recipe of the small network on CamVid, on random images for `steps` steps an epoch."""

    def build(self) -> building.Experiment:
        """Build the network, the loss, the optimizer and the data."""
        config = camvid_deeplab_small.get_config(self.loss)
        config.model.name, config.batch_size = self.model, self.batch_size
        draw = np.random.default_rng(0)
        shape = (self.batch_size * self.steps, HEIGHT, WIDTH)
        pixels = draw.integers(256, size=(*shape, 3)).astype(np.uint8)
        labels = draw.integers(12, size=shape).astype(np.int32)
        part = InMemory(pixels, labels, (labels < 11).astype(np.float32))
        prepare = image_sets.normalized(image_sets.IMAGENET)
        return building.assemble(config, _dataset(11, part, part, prepare=prepare))


def _tree(tree: random_trees.RandomTree) -> trees.Tree:
    pairs = tuple((left, right) for left, right in tree.children.tolist())
    return trees.Tree(tuple(tree.words.tolist()), tuple(tree.labels.tolist()), pairs)


def train_step(task: train.Task, axis_name: str | None) -> Any:
    """Build the training step of a task."""
    return train.make_train_step(
        *(task.forward, task.objective, task.tx),
        reduction=task.reduction,
        augment=task.augment,
        prepare=task.prepare,
        axis_name=axis_name,
    )


def exchanged(work: Work, devices: int) -> tuple[Counter[str], int]:
    """Count the bytes that a device exchanges in a step, by part, and those of the gradients."""
    experiment, share = work.build(), work.batch_size
    images, labels, _ = experiment.task.train[np.arange(share)]
    batch = train.Batch(jnp.asarray(images), jnp.asarray(labels), jnp.ones(share), labels)
    step, state = train_step(experiment.task, train.AXIS), experiment.template()
    parts = programs.exchanged(step, state, batch, devices=devices)
    return parts, memory.size(state.params)


class Epochs:
    """Train runs with one compiled program; a call trains each run for an epoch, and waits.

    Args:
      work: the network, the loss and the data.
      groups: seeds of the runs. Runs of a group train together in one program; groups have equal
        sizes and train one after another with the same program.
      feed: `train.Resident` compiles the loop over steps, `train.Streamed` a single step.
    """

    def __init__(
        self, work: Work, groups: Sequence[Sequence[int]] = ((0,),), feed: Any = train.Resident
    ) -> None:
        self.experiment = work.build()
        task, seeds = self.experiment.task, [seed for group in groups for seed in group]
        self.arrangement = train.Arrangement(jax.devices(), len(groups[0]), work.over)
        step = train_step(task, self.arrangement.axis_name)
        self._runner = feed(task.train, self.arrangement).training(step)
        self._groups, self._steps = groups, work.steps
        split: dict[str, Any] = {"multiple": self.arrangement.sharing}
        self._orders = {
            seed: train.in_batches(
                train.shuffled(len(task.train), seed, 0), work.batch_size, **split
            )
            for seed in seeds
        }
        # Only the initial states of these runs are used, so they need no folders.
        runs = self.experiment.runs({seed: pathlib.Path("none") for seed in seeds})
        states = {run.seed: run.state for run in runs}
        place = self.arrangement.place
        self.states = [place([states[seed] for seed in group]) for group in groups]
        self._begin(0)
        began = time.perf_counter()
        compiled = self._runner.compiled(self.states[0])
        self.about: dict[str, Any] = {"compile_seconds": time.perf_counter() - began}
        self.about |= programs.analysis(compiled)
        self.about["parameters"] = sum(x.size for x in jax.tree.leaves(runs[0].state.params))

    def _begin(self, number: int) -> None:
        for run, seed in enumerate(self._groups[number]):
            self._runner.begin(self._orders[seed], 0, run=run)

    def __call__(self) -> None:
        """Train every run for an epoch, and wait."""
        for number, group in enumerate(self._groups):
            self._begin(number)
            starts, stops = ([steps] * len(group) for steps in (0, self._steps))
            self.states[number], measured = self._runner(self.states[number], starts, stops)
            self._runner.measured_in(measured, starts, stops)
            jax.block_until_ready(self.states[number])


class Evaluation:
    """Evaluate an untrained network on the validation part; a call is one pass, and waits."""

    def __init__(self, work: Work) -> None:
        training = Epochs(work)
        task = training.experiment.task
        step = train.make_eval_step(
            task.forward,
            task.metrics,
            objective=task.objective,
            prepare=task.prepare,
            axis_name=training.arrangement.axis_name,
        )
        feed = train.feed(task.evaluated["validation"], training.arrangement)
        self._evaluate = feed.evaluation(step, work.batch_size)
        self._state = training.states[0]

    def __call__(self) -> None:
        """Evaluate the network, and wait."""
        jax.block_until_ready(self._evaluate(self._state, [True]))


class Peer:
    """An epoch in PyTorch, in a separate process that shares no threads or memory with JAX.

    Args:
      python: a Python that has PyTorch; "" is the current one.
      loop: the arguments of `torch_loop.loop`.
      environment: further variables of the process.
    """

    def __init__(self, python: str, loop: dict[str, Any], **environment: str) -> None:
        paths = [str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        module = "experiments.benchmarks.torch_loop"
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", module, json.dumps(loop)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | environment,
        )
        self.about: dict[str, Any] = {"torch": self._reply()}

    def __call__(self) -> None:
        """Train for an epoch, and wait for the reply."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.about |= self._reply()

    def _reply(self) -> Any:
        assert self._process.stdout
        if line := self._process.stdout.readline():
            return json.loads(line)
        self.close()
        raise RuntimeError(f"PyTorch ended with code {self._process.returncode}; see above.")

    def close(self) -> None:
        """Close the input of the process, which ends it."""
        self._process.communicate(timeout=20)
