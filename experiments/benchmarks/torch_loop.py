"""The training loop that the papers released, in PyTorch, for comparison with ours.

    if torch_loop.available():
        loop = torch_loop.Loop(torch_loop.network("resnet50"), images, labels, batches)
        loop.epoch()  # trains it, waits for the device, and returns the mean loss

The same computation as ours: losses summed over the batch, the gradient's norm clipped at 2, SGD
with momentum 0.9 and weight decay 5e-4 on all parameters. PyTorch is imported when it is used.
JAX is not imported at all, so that a process of its own, without JAX's threads and the memory that
it takes of a GPU, can run this.

References:
  Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss: the released code.
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["Loop", "available", "cropped", "network"]

# blocks of each stage, whether they are bottlenecks, width, how the shortcut changes shape
_PLANS = {
    "resnet20": ((3, 3, 3), False, 16, "pad"),
    "resnet50": ((3, 4, 6, 3), True, 64, "projection"),
}
NETWORKS, FORMS, DTYPES = tuple(_PLANS), ("plain", "released"), ("float32", "bfloat16")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # of CIFAR-10, as released
PADDING = 4
CLIP_NORM = 2.0


def available() -> bool:
    """Tell whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ImportError("this comparison needs PyTorch: pip install torch.") from error


def _one_of(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{what} must be one of {', '.join(choices)}, got {value!r}.")


def network(name: str, num_classes: int = 10) -> Any:
    """Make a network as a PyTorch module, with the names of layers of the released code.

    Args:
      name: "resnet20", the small one of He et al. with shortcuts that are padded, or "resnet50",
        the one of the calibration papers for CIFAR; as `calib_jax.models` has them.
      num_classes: how many logits an example gets.
    """
    _one_of("network", name, NETWORKS)
    torch = _torch()
    nn: Any = torch.nn
    functional = nn.functional

    def conv(inputs: int, outputs: int, size: int, stride: int) -> Any:
        return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            plan = [(3, width, stride), (3, width, 1)]
            if bottleneck:
                plan = [(1, width, 1), (3, width, stride), (1, 4 * width, 1)]
            self.pairs, outputs = [], inputs
            for number, (size, features, step) in enumerate(plan, start=1):
                pair = conv(outputs, features, size, step), nn.BatchNorm2d(features)
                self.add_module(f"conv{number}", pair[0])
                self.add_module(f"bn{number}", pair[1])
                self.pairs.append(pair)
                outputs = features
            self.stride, self.more = stride, outputs - inputs
            self.same = stride == 1 and not self.more
            if not self.same and shortcut == "projection":
                projection = conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
                self.shortcut = nn.Sequential(*projection)

        def around(self, x: Any) -> Any:
            if self.same:
                return x
            if shortcut == "projection":
                return self.shortcut(x)
            before = self.more // 2
            x = x[:, :, :: self.stride, :: self.stride]
            return functional.pad(x, (0, 0, 0, 0, before, self.more - before))

        def forward(self, x: Any) -> Any:
            y = x
            for number, (convolution, norm) in enumerate(self.pairs):
                y = norm(convolution(torch.relu(y) if number else y))
            return torch.relu(y + self.around(x))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = conv(3, stem, 3, 1), nn.BatchNorm2d(stem)
            self.stages, inputs = [], stem
            for stage, number in enumerate(blocks):
                width, made = stem * 2**stage, []
                for block in range(number):
                    made.append(Block(inputs, width, 2 if stage and not block else 1))
                    inputs = 4 * width if bottleneck else width
                self.stages.append(f"layer{stage + 1}")
                self.add_module(self.stages[-1], nn.Sequential(*made))
            self.fc = nn.Linear(inputs, num_classes)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.bn1(self.conv1(x)))
            for name in self.stages:
                x = getattr(self, name)(x)
            return self.fc(x.mean((2, 3)))

    blocks, bottleneck, stem, shortcut = _PLANS[name]
    return ResNet()


def cropped(image: np.ndarray, row: int, column: int, flip: bool) -> np.ndarray:
    """Cut a window of the old size out of an image with 4 pixels of zeros on every side.

    Args:
      image: `[height, width, channels]`.
      row, column: the window's corner, from 0 to 8.
      flip: whether the window is mirrored left to right.
    """
    height, width, channels = image.shape
    padded = np.zeros((height + 2 * PADDING, width + 2 * PADDING, channels), image.dtype)
    padded[PADDING : PADDING + height, PADDING : PADDING + width] = image
    window = padded[row : row + height, column : column + width]
    return np.ascontiguousarray(window[:, ::-1] if flip else window)


class _Images:
    """Examples one by one, as the workers of a DataLoader make them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, augment: bool) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        torch, image = _torch(), self.images[number]
        if self.augment:
            row, column = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
            image = cropped(image, row, column, bool(torch.rand(1) < 0.5))
        tensor = torch.from_numpy(image).permute(2, 0, 1).contiguous()
        return _normalised(torch, tensor), int(self.labels[number])


def _normalised(torch: Any, images: Any) -> Any:
    """Make numbers of bytes `[..., channels, height, width]`; what are numbers stays."""
    if images.dtype != torch.uint8:
        return images
    per_channel = {"dtype": torch.float32, "device": images.device}
    mean, std = (torch.tensor(row, **per_channel)[:, None, None] for row in (MEAN, STD))
    return images.float().div_(255).sub_(mean).div_(std)


class Loop:
    """Training of a network in PyTorch, an epoch at a time.

    Two forms. "plain" is the most favourable for PyTorch: all images lie on the device, a step
    looks its batch up there, nothing is augmented and no loss is waited for. "released" is what
    the papers ran: a `DataLoader` whose workers begin anew in each epoch, and crop, flip and
    normalise image by image; the batch is copied to the device, and the loss to the host after
    each step.

    Args:
      network: a module, which is moved to the device and trained there.
      images: `[examples, height, width, 3]`: bytes, which are normalised by the statistics of
        CIFAR-10, or numbers of the network's dtype, which are taken as they are.
      labels: `[examples]`.
      batches: of an epoch, each the numbers of its examples.
      form: "plain" or "released".
      device: "cpu" or "cuda".
      dtype: "float32", or "bfloat16" by autocast, with the loss in float32.
      tf32: whether a GPU may multiply float32 with fewer digits.
      channels_last: whether images lie in memory as `[height, width, channels]`.
      learning_rate: of SGD.
      gamma: of the focal loss; 0 is cross-entropy.
      reduction: "sum" over the batch, as released, or "mean".
      num_workers: of the form "released"; 0 is none beside this process.
      augment: whether that form crops and flips.
    """

    def __init__(
        self,
        network: Any,
        images: np.ndarray,
        labels: np.ndarray,
        batches: Sequence[Sequence[int] | np.ndarray],
        *,
        form: str = "plain",
        device: str = "cpu",
        dtype: str = "float32",
        tf32: bool = False,
        channels_last: bool = False,
        learning_rate: float = 0.1,
        gamma: float = 0.0,
        reduction: str = "sum",
        num_workers: int = 4,
        augment: bool = True,
    ) -> None:
        _one_of("form", form, FORMS)
        _one_of("dtype", dtype, DTYPES)
        _one_of("reduction", reduction, ("sum", "mean"))
        torch = self._torch = _torch()
        self._device, self._tf32 = torch.device(device), tf32
        self._gamma, self._reduction = gamma, reduction
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self._layout = {"memory_format": layout}
        self._narrow = dtype == "bfloat16"
        self._autocast: Callable[[], Any] = contextlib.nullcontext
        if self._narrow:
            self._autocast = lambda: torch.autocast(self._device.type, torch.bfloat16)
        self.network = network.to(self._device, **self._layout)
        self._parameters = list(self.network.parameters())
        self._tx = torch.optim.SGD(
            self._parameters, lr=learning_rate, momentum=0.9, weight_decay=5e-4
        )
        self._waits = form == "released"
        self._examples = sum(map(len, batches))
        if form == "plain":
            self._batches = self._resident(images, labels, batches)
        else:
            self._batches = self._loaded(images, labels, batches, num_workers, augment)

    def _resident(self, images: Any, labels: Any, batches: Any) -> Callable[[], Iterator[Any]]:
        torch, place = self._torch, {"device": self._device}
        held = torch.tensor(np.moveaxis(images, -1, 1).copy(), **place).contiguous(**self._layout)
        classes = torch.tensor(labels, dtype=torch.long, **place)
        rows = [torch.tensor(np.asarray(batch), dtype=torch.long, **place) for batch in batches]

        def looked_up() -> Iterator[Any]:
            for numbers in rows:
                yield _normalised(torch, held[numbers]), classes[numbers]

        return looked_up

    def _loaded(
        self, images: Any, labels: Any, batches: Any, num_workers: int, augment: bool
    ) -> Callable[[], Iterator[Any]]:
        loader = self._torch.utils.data.DataLoader(
            _Images(images, labels, augment),
            batch_sampler=[[int(number) for number in batch] for batch in batches],
            num_workers=num_workers,
            pin_memory=self._device.type == "cuda",
        )

        def copied() -> Iterator[Any]:
            for inputs, classes in loader:
                yield inputs.to(self._device), classes.to(self._device)

        return copied

    def _loss(self, logits: Any, labels: Any) -> Any:
        functional = self._torch.nn.functional
        if not self._gamma:
            return functional.cross_entropy(logits, labels, reduction=self._reduction)
        log_p = functional.log_softmax(logits, -1).gather(1, labels[:, None])
        losses = -((1 - log_p.exp()) ** self._gamma) * log_p
        return losses.sum() if self._reduction == "sum" else losses.mean()

    def epoch(self) -> float:
        """Train for an epoch, wait until the device is done, and return the mean loss."""
        torch = self._torch
        if self._device.type == "cuda":  # for the whole process, so that each epoch says it anew
            torch.backends.cuda.matmul.allow_tf32 = self._tf32
            torch.backends.cudnn.allow_tf32 = self._tf32
            torch.backends.cudnn.benchmark = True  # as released
        self.network.train()
        total: Any = 0.0
        for inputs, labels in self._batches():
            self._tx.zero_grad()
            with self._autocast():
                logits = self.network(inputs.contiguous(**self._layout))
            loss = self._loss(logits.float() if self._narrow else logits, labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, CLIP_NORM)
            weight = 1 if self._reduction == "sum" else len(labels)
            total = total + weight * (loss.item() if self._waits else loss.detach())
            self._tx.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return float(total) / self._examples
