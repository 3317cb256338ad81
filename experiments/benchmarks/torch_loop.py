"""The papers' released training loop in PyTorch, for comparison with calib_jax.

    python -m experiments.benchmarks.torch_loop '{"name": "resnet20", "batch_size": 8, ...}'

builds a loop by `loop`, and trains an epoch for each line of input, in a process without JAX's
threads and memory. The computation is the same as in calib_jax: cross-entropy summed
over the batch, the norm of the gradient clipped at 2, SGD with momentum 0.9 and weight decay 5e-4
on all parameters.

References:
  Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss: the released code.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.benchmarks import torch_translation, torch_trees

# Blocks of each stage, and the width of the first; only resnet50 has bottlenecks and projections.
PLANS = {"resnet20": ((3, 3, 3), 16), "resnet50": ((3, 4, 6, 3), 64)}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # The released values for CIFAR-10.
BEAM_SEARCH = "beam search"  # in place of a network's name: no training
PADDING = 4
CLIP_NORM = 2.0


def _conv(inputs: int, outputs: int, size: int, stride: int) -> Any:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Block(nn.Module):
    """A residual block: a bottleneck with a projection, or two layers with a padded shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        plan = [(3, width, stride), (3, width, 1)]
        if bottleneck:
            plan = [(1, width, 1), (3, width, stride), (1, 4 * width, 1)]
        self.depth, outputs = len(plan), inputs
        for i, (size, features, step) in enumerate(plan, start=1):
            self.add_module(f"conv{i}", _conv(outputs, features, size, step))
            self.add_module(f"bn{i}", nn.BatchNorm2d(features))
            outputs = features
        self.stride, self.more = stride, outputs - inputs
        if bottleneck and (stride > 1 or self.more):
            projection = _conv(inputs, outputs, 1, stride)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        """Compute the output of the block."""
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(torch.relu(y) if i > 1 else y))
        if hasattr(self, "shortcut"):
            return torch.relu(y + self.shortcut(x))
        before, x = self.more // 2, x[:, :, :: self.stride, :: self.stride]
        return torch.relu(y + functional.pad(x, (0, 0, 0, 0, before, self.more - before)))


class Network(nn.Module):
    """A residual network of `calib_jax.models`, with the layer names of the released code."""

    def __init__(self, name: str, num_classes: int = 10) -> None:
        super().__init__()
        (blocks, stem), bottleneck = PLANS[name], name == "resnet50"
        self.conv1, self.bn1, inputs = _conv(3, stem, 3, 1), nn.BatchNorm2d(stem), stem
        self.stages = [f"layer{stage + 1}" for stage in range(len(blocks))]
        for stage, number in enumerate(blocks):
            width, made = stem * 2**stage, []
            for block in range(number):
                made.append(Block(inputs, width, 2 if stage and not block else 1, bottleneck))
                inputs = 4 * width if bottleneck else width
            self.add_module(self.stages[stage], nn.Sequential(*made))
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, x: Any) -> Any:
        """Compute the logits of images `[examples, 3, height, width]`."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(x.mean((2, 3)))


def cropped(image: np.ndarray, row: int, column: int, flip: bool) -> np.ndarray:
    """Crop an image `[height, width, channels]` padded by 4, from a corner between 0 and 8."""
    height, width, _ = image.shape
    padded = np.pad(image, [(PADDING, PADDING), (PADDING, PADDING), (0, 0)])
    window = padded[row : row + height, column : column + width]
    return np.ascontiguousarray(window[:, ::-1] if flip else window)


@dataclasses.dataclass
class _Images:
    """Single examples, as the workers of a DataLoader build them."""

    images: np.ndarray
    labels: np.ndarray
    augment: bool

    def __getitem__(self, number: int) -> tuple[Any, int]:
        image = self.images[number]
        if self.augment:
            row, column = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
            image = cropped(image, row, column, bool(torch.rand(1) < 0.5))
        channels_first = torch.from_numpy(image).permute(2, 0, 1).contiguous()
        return _normalized(channels_first), int(self.labels[number])


def _normalized(images: Any) -> Any:
    """Normalize bytes `[..., channels, height, width]`; return floats unchanged."""
    if images.dtype != torch.uint8:
        return images
    mean, std = (torch.tensor(row, device=images.device)[:, None, None] for row in (MEAN, STD))
    return images.float().div_(255).sub_(mean).div_(std)


class Loop:
    """Training of a network in PyTorch, an epoch at a time.

    The default loop is the fastest for PyTorch: all images are on the device, nothing is augmented
    and no step waits for the loss. The released loop is the one that the papers ran: workers, which
    start again each epoch, crop, flip and normalize single images; each step copies the batch to
    the device and the loss to the host.

    Args:
      network: a module, which is moved to the device and trained there.
      images: `[examples, height, width, 3]`: bytes, or floats that are already normalized.
      labels: `[examples]`.
      batches: the batches of an epoch, each an array of example indices.
      released: whether to run the released loop, whose workers augment if `augment` is true.
      learning_rate: the learning rate of SGD.
    """

    def __init__(
        self,
        network: Any,
        images: np.ndarray,
        labels: np.ndarray,
        batches: Sequence[Any] | np.ndarray,
        *,
        released: bool = False,
        learning_rate: float = 0.1,
        num_workers: int = 4,
        augment: bool = True,
    ) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network, self._released = network.to(self._device), released
        self._parameters, self._examples = list(network.parameters()), sum(map(len, batches))
        self._tx = torch.optim.SGD(
            self._parameters, lr=learning_rate, momentum=0.9, weight_decay=5e-4
        )
        if released:
            self._loader = torch.utils.data.DataLoader(
                _Images(images, labels, augment),
                batch_sampler=[[int(number) for number in batch] for batch in batches],
                num_workers=num_workers,
                pin_memory=torch.cuda.is_available(),
            )
        else:
            held = np.moveaxis(images, -1, 1).copy(), labels.astype(int), *map(np.array, batches)
            self._held = [torch.tensor(array, device=self._device) for array in held]

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        if self._released:
            for inputs, labels in self._loader:
                yield inputs.to(self._device), labels.to(self._device)
        else:
            images, classes, *rows = self._held
            for numbers in rows:
                yield _normalized(images[numbers]), classes[numbers]

    def epoch(self) -> float:
        """Train for an epoch, wait until the device is done, and return the mean loss."""
        total: Any = 0.0
        self.network.train()
        for inputs, labels in self._batches():
            self._tx.zero_grad()
            loss = functional.cross_entropy(self.network(inputs), labels, reduction="sum")
            loss.backward()
            nn.utils.clip_grad_norm_(self._parameters, CLIP_NORM)
            total = total + (loss.item() if self._released else loss.detach())
            self._tx.step()
        return float(total) / self._examples  # Waits for the device.


def loop(
    name: str, batch_size: int, steps: int, *, stored: bool, released: bool
) -> Loop | torch_trees.Loop | torch_translation.Loop | torch_translation.Translation:
    """Build a loop on random images, which are bytes if they are `stored`, trees or sentences."""
    if name == "tree_lstm":
        return torch_trees.Loop(torch_trees.Network(), batch_size, steps)
    if name == "transformer":
        return torch_translation.Loop(torch_translation.Network(), batch_size, steps)
    if name == BEAM_SEARCH:
        return torch_translation.Translation(torch_translation.Network(), batch_size)
    draw, shape = np.random.default_rng(0), (batch_size * steps, 32, 32, 3)
    images = draw.integers(256, size=shape, dtype="uint8") if stored else draw.normal(size=shape)
    order = draw.permutation(len(images)).reshape(steps, batch_size)
    floats = images if stored else images.astype("float32")
    return Loop(
        Network(name), floats, draw.integers(10, size=len(images)), order, released=released
    )


def main() -> None:
    """Build the loop of the first argument, and train an epoch for each line of input."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print to standard output, which is kept for replies.
    affinity, cuda = getattr(os, "sched_getaffinity", None), torch.cuda
    torch.set_num_threads(len(affinity(0)) if affinity else os.cpu_count() or 1)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True  # As released.
    trained = loop(**json.loads(sys.argv[1]))
    device = cuda.get_device_name() if cuda.is_available() else "cpu"
    about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": device}
    print(json.dumps(about), file=replies, flush=True)
    for _ in sys.stdin:
        cuda.reset_peak_memory_stats() if cuda.is_available() else None
        before = cuda.memory_allocated()
        trained.epoch()
        memory = cuda.max_memory_allocated() - before if cuda.is_available() else None
        print(json.dumps({"memory": memory}), file=replies, flush=True)


if __name__ == "__main__":
    main()
