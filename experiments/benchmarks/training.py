"""Time training: epochs, what surrounds them, losses with state, several seeds, several devices.

    python -m experiments.benchmarks.training
    python -m experiments.benchmarks.training --torch_python=OTHER/bin/python --page=training.md
    python -m experiments.benchmarks.training --parts=epoch,seeds --out=training.json

Random images. The parts:

  epoch      an epoch as one compiled loop, its steps one by one, and PyTorch's; compile time
  objective  steps with AdaFocal and with recall loss beside cross-entropy
  fit        what an epoch of `train.fit`, with evaluation, checkpoints and logs, takes beside the
             compiled programs that it runs
  seeds      several seeds in one program beside the same runs one after another
  devices    bytes that cross devices in a step, counted from a program compiled for 8
  gpu        ResNet-50 in float32 and bfloat16 beside PyTorch's plain loop and the released one:
             utilisation and memory; by default only where there is a GPU

PyTorch runs in a process of its own, in turns with ours and with as many threads. It is that of
this Python, or of --torch_python; without it, its rows are missing. On two CPU cores all of it
takes about ten minutes, which --steps and --rounds shorten.
"""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import app, flags, logging
from tqdm import tqdm

from experiments import provenance
from experiments.benchmarks import (
    torch_loop,
    torch_worker,
    training_page,
    training_parts,
    training_traffic,
)
from experiments.benchmarks.training_work import Work

_PARTS = flags.DEFINE_list("parts", None, "What to measure; by default all that there is for.")
_MODEL = flags.DEFINE_string(
    "model", None, "One of calib_jax.models; by default resnet20, and resnet50 in the part gpu."
)
_BATCH = flags.DEFINE_integer(
    "batch_size", None, "Images of a step; by default 128, fewer for seeds on a CPU.", lower_bound=1
)
_STEPS = flags.DEFINE_integer(
    "steps",
    None,
    "Steps of an epoch; by default 10 (fit: 30) on a CPU, 352, as CIFAR-10 has, on a GPU; other"
    " numbers for seeds.",
    lower_bound=2,
)
_ROUNDS = flags.DEFINE_integer("rounds", 7, "How often each is timed.", lower_bound=3)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Runs of one program.", lower_bound=2)
_EPOCHS = flags.DEFINE_integer(
    "run_epochs", 30, "Of a run, where seeds are compared with compilation.", lower_bound=1
)
_DEVICES = flags.DEFINE_integer("devices", 8, "That bytes are counted for.", lower_bound=2)
_TORCH = flags.DEFINE_string("torch_python", None, "A Python with PyTorch; by default this one.")
_PEAK = flags.DEFINE_list(
    "peak_tflops",
    None,
    "Peak of the device in float32 (by TF32) and bfloat16, as 495,989; known of A100, H100, H200.",
)
_OUT = flags.DEFINE_string("out", None, "Write all numbers, with their provenance, to this JSON.")
_PAGE = flags.DEFINE_string("page", None, "Write them as a page of text to this Markdown file.")

# Dense, of the forms with SXM sockets where there are several; from their data sheets.
_PEAKS = {"A100": (156, 312), "H100 PCIe": (378, 756), "H100": (495, 989), "H200": (495, 989)}
# Batch size and steps: on a CPU steps that take 1 to 100 ms, on a GPU an epoch that can be timed.
_SEEDED = {
    "cpu": {"mlp": (128, 100), "lenet5": (64, 20), "resnet20": (16, 4)},
    "gpu": {"mlp": (128, 300), "lenet5": (128, 300), "resnet20": (128, 100)},
}


def peaks() -> dict[str, float]:
    """Say what the device can do, by dtype; nothing if that is not known."""
    if _PEAK.value:
        try:
            narrow, wide = map(float, _PEAK.value)
        except ValueError:
            raise ValueError(
                f"--peak_tflops={','.join(_PEAK.value)} must be two numbers, as 495,989: of float32"
                " and of bfloat16."
            ) from None
        return {"float32": narrow, "bfloat16": wide}
    kind = jax.devices()[0].device_kind
    known = next((both for name, both in _PEAKS.items() if name in kind), ())
    return dict(zip(("float32", "bfloat16"), map(float, known), strict=False))


def work(steps: int, *, model: str = "resnet20", batch_size: int = 128) -> Work:
    """Make a network and its data, as the flags say it where they do."""
    return Work(model, _BATCH.value or batch_size, _STEPS.value or steps)


def seeded() -> list[Work]:
    """Make the networks that are trained with several seeds."""
    sizes = _SEEDED["gpu" if jax.default_backend() == "gpu" else "cpu"]
    names = [_MODEL.value] if _MODEL.value else [*sizes]
    default = sizes["resnet20"]
    return [
        work(model=name, batch_size=batch, steps=steps)
        for name in names
        for batch, steps in [sizes.get(name, default)]
    ]


def parts(session: training_parts.Session) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Name the parts, in the order in which they are measured."""
    on_gpu = jax.default_backend() == "gpu"
    model = _MODEL.value or "resnet20"
    usual, longer = (
        work(352 if on_gpu else 10, model=model),
        work(352 if on_gpu else 30, model=model),
    )

    def devices() -> list[dict[str, Any]]:
        names = ("cross_entropy", "mmce")
        found = training_traffic.counted(model, usual.batch_size, names, _DEVICES.value)
        bar = tqdm(found, desc="devices", total=len(names), leave=False, disable=None)
        return [{"task": "devices", **made} for made in bar]

    def gpu() -> list[dict[str, Any]]:
        return training_parts.gpu(session, work(352, model=_MODEL.value or "resnet50"))

    return {
        "epoch": lambda: training_parts.epoch(session, usual),
        "objective": lambda: training_parts.objective(session, usual),
        "fit": lambda: training_parts.fit(session, longer),
        "seeds": lambda: training_parts.seeds(session, seeded(), _SEEDS.value, _EPOCHS.value),
        "devices": devices,
        "gpu": gpu,
    }


def chosen(known: list[str]) -> list[str]:
    """Say which parts are wanted."""
    if _PARTS.value is None:
        return [name for name in known if name != "gpu" or jax.default_backend() == "gpu"]
    for name in _PARTS.value:
        if name not in known:
            raise ValueError(f"--parts={name} is none of {', '.join(known)}.")
    return [name for name in known if name in _PARTS.value]


def peer(stack: contextlib.ExitStack) -> torch_worker.Peer | None:
    """Start PyTorch, if there is one."""
    if not (_TORCH.value or torch_loop.available()):
        return None
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return stack.enter_context(torch_worker.fastest(_TORCH.value, threads or 1))


def main(_: list[str]) -> None:
    """Measure, print the page, write it and the JSON."""
    logging.set_verbosity(logging.ERROR)  # checkpoints tell much
    jax.config.update("jax_enable_compilation_cache", False)  # compilation is timed
    load: dict[str, float] = {}
    seconds: dict[str, float] = {}
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        torch = peer(stack)
        session = training_parts.Session(_ROUNDS.value, torch, peaks())
        every = parts(session)
        wanted = chosen([*every])
        bar = stack.enter_context(tqdm(wanted, unit="part", disable=None))
        for name in bar:
            bar.set_description(name)
            load[name] = round(os.getloadavg()[0], 2)
            began = time.monotonic()
            results += every[name]()
            seconds[name] = round(time.monotonic() - began, 1)
        about = {
            "load": load,
            "part_seconds": seconds,
            "torch": torch.about if torch else None,
            "peak_tflops": session.peak_tflops,
            "backend": jax.default_backend(),
        }
    origin = provenance.describe()
    if _TORCH.value:  # a path of this machine alone
        origin["command"] = origin["command"].replace(_TORCH.value, "PYTHON")
    found = {"provenance": origin, "setting": about, "results": results}
    text = training_page.page(found)
    print(text)
    for path, content in ((_OUT.value, json.dumps(found, indent=1) + "\n"), (_PAGE.value, text)):
        if path:
            pathlib.Path(path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
