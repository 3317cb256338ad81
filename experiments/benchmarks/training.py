"""Time training steps of a residual network against PyTorch's plain loop.

    python -m experiments.benchmarks.training
    python -m experiments.benchmarks.training --model=resnet50 --images=128 --steps=50

The images are random and lie on the device; nothing is augmented and no step waits for the loss.
Both loops compute the same: cross-entropy summed over the batch, the norm of the gradient clipped
at 2, weight decay 5e-4, SGD with momentum .9. Without PyTorch its row is missing. On a GPU both
loops use TF32, and JAX has a row in bfloat16; set XLA_PYTHON_CLIENT_PREALLOCATE=false, since both
share the memory.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from calib_jax import losses, models, train
from experiments.benchmarks import timing
from experiments.running import cli

for _name in ("json", "rounds"):
    flags.declare_key_flag(_name)  # defined by `timing`
_MODEL = flags.DEFINE_string("model", "resnet20", "resnet20 or resnet50.")
_IMAGES = flags.DEFINE_integer("images", 32, "Images of a step.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 10, "Steps of a call that is timed.", lower_bound=1)
_LOSS = flags.DEFINE_string("loss", "cross_entropy", "Objective of the rows of JAX.")

CLASSES, SIDE = 10, 32
RATE, MOMENTUM, DECAY, CLIP = 0.1, 0.9, 5e-4, 2.0
# Blocks of each stage, and the width of the first; resnet50 has bottlenecks.
PLANS = {"resnet20": ((3, 3, 3), 16), "resnet50": ((3, 4, 6, 3), 64)}


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw images `[count, 32, 32, 3]` and labels."""
    random = np.random.default_rng(0)
    drawn = random.normal(size=(count, SIDE, SIDE, 3)).astype(np.float32)
    return drawn, random.integers(CLASSES, size=count).astype(np.int32)


class OurLoop:
    """Training with the step of `calib_jax.train`; a call does some steps, and waits."""

    def __init__(self, name: str, loss: str, batch_size: int, steps: int, **options: Any) -> None:
        module = models.named(name, num_classes=CLASSES, **options)
        objective, self.steps = losses.objective(loss), steps
        tx = optax.chain(
            optax.clip_by_global_norm(CLIP),
            optax.add_decayed_weights(DECAY),
            optax.sgd(RATE, MOMENTUM),
        )
        inputs, labels = map(jnp.asarray, images(batch_size))
        variables = module.init(jax.random.key(0), inputs[:1], train=False)
        self.state = train.create(
            variables, objective, tx, CLASSES, 0, class_counts=np.full(CLASSES, batch_size)
        )
        step = train.make_train_step(train.linen(module), objective, tx, reduction="sum")
        self.step = step
        self._jitted = jax.jit(step, donate_argnums=0)
        self.batch = train.Batch(inputs, labels, jnp.ones(batch_size), jnp.arange(batch_size))

    def __call__(self) -> None:
        """Do the steps, and wait."""
        for _ in range(self.steps):
            self.state, _ = self._jitted(self.state, self.batch)
        jax.block_until_ready(self.state.params)


def torch_network(name: str) -> Any:
    """Build the residual network of `calib_jax.models` in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional

    (blocks, stem), bottleneck = PLANS[name], name == "resnet50"

    def layer(inputs: int, outputs: int, size: int, stride: int) -> Any:
        convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            plan = [(3, width, stride), (3, width, 1)]
            if bottleneck:
                plan = [(1, width, 1), (3, width, stride), (1, 4 * width, 1)]
            widths = [inputs, *(width for _, width, _ in plan)]
            self.layers = nn.ModuleList(
                layer(before, after, size, step)
                for before, (size, after, step) in zip(widths, plan, strict=False)
            )
            self.stride, self.more = stride, widths[-1] - inputs
            changed = bottleneck and (stride > 1 or self.more)
            self.shortcut = layer(inputs, widths[-1], 1, stride) if changed else None

        def forward(self, x: Any) -> Any:
            y = x
            for number, part in enumerate(self.layers):
                y = part(torch.relu(y) if number else y)
            if self.shortcut is not None:
                return torch.relu(y + self.shortcut(x))
            before, x = self.more // 2, x[:, :, :: self.stride, :: self.stride]
            return torch.relu(y + functional.pad(x, (0, 0, 0, 0, before, self.more - before)))

    parts, inputs = [layer(3, stem, 3, 1), nn.ReLU()], stem
    for stage, number in enumerate(blocks):
        for block in range(number):
            width = stem * 2**stage
            parts.append(Block(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width if bottleneck else width
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
    return nn.Sequential(*parts)


def torch_loop(name: str, batch_size: int, steps: int) -> Callable[[], None]:
    """Return a call that does some steps in PyTorch, and waits."""
    import torch
    from torch.nn import functional

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    network = torch_network(name).to(device).to(memory_format=torch.channels_last).train()
    parameters = list(network.parameters())
    optimizer = torch.optim.SGD(parameters, RATE, momentum=MOMENTUM, weight_decay=DECAY)
    inputs, labels = (torch.from_numpy(part).to(device) for part in images(batch_size))
    inputs = inputs.permute(0, 3, 1, 2).to(memory_format=torch.channels_last)

    def call() -> None:
        for _ in range(steps):
            loss = functional.cross_entropy(network(inputs), labels.long(), reduction="sum")
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return call


def main() -> None:
    """Time both loops in turns."""
    name, size, steps = _MODEL.value, _IMAGES.value, _STEPS.value
    if name not in PLANS:
        raise cli.Refused(f"--model must be {' or '.join(PLANS)}, got {name!r}.")
    cli.refusing(losses.objective, _LOSS.value)
    calls: dict[str, Callable[[], Any]] = {}
    if jax.default_backend() != "cpu":
        jax.config.update("jax_default_matmul_precision", "tensorfloat32")
        calls["calib_jax, bfloat16"] = OurLoop(name, _LOSS.value, size, steps, dtype="bfloat16")
    calls["calib_jax"] = OurLoop(name, _LOSS.value, size, steps)
    base = "calib_jax"
    if importlib.util.find_spec("torch") is not None:
        base = "PyTorch"
        calls[base] = torch_loop(name, size, steps)
    rows = timing.compared(
        timing.interleaved(calls, rounds=timing.ROUNDS.value), base, model=name, batch_size=size
    )
    for row in rows:
        row["images_per_second"] = 1e3 * size * steps / row["ms"]
    timing.report(rows)


if __name__ == "__main__":
    cli.run(main)
