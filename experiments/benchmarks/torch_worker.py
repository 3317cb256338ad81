"""PyTorch in a process of its own, told over pipes when to train an epoch.

    with torch_worker.Peer(python, threads=2) as peer:
        peer.build("plain", network="resnet20", batch_size=128, steps=10)
        peer.epoch("plain")    # returns when it is done, so that the two never run at once

Two libraries in one process share threads, and on a GPU memory, in ways that neither is measured
with. The process runs this file and never imports JAX: it may be another Python than ours.
Requests and answers are JSON, a line each.
"""

import contextlib
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from experiments.benchmarks import torch_loop

__all__ = ["Peer", "batches", "fastest", "random_images"]

_CHECKOUT = pathlib.Path(__file__).parents[2]


def random_images(
    count: int, shape: tuple[int, ...] = (32, 32, 3), *, stored: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Make images and labels out of nothing, the same ones each time.

    Args:
      count: how many.
      shape: of one.
      stored: bytes, as data sets have them, instead of numbers around 0.
    """
    draw = np.random.default_rng(0)
    if stored:
        images = draw.integers(256, size=(count, *shape)).astype(np.uint8)
    else:
        images = draw.normal(size=(count, *shape)).astype(np.float32)
    return images, draw.integers(10, size=count).astype(np.int32)


def batches(count: int, batch_size: int) -> np.ndarray:
    """Shuffle the numbers of examples into batches, `[steps, batch_size]`."""
    return np.random.default_rng(1).permutation(count).reshape(-1, batch_size)


class Peer:
    """The process, seen from ours.

    Args:
      python: that has PyTorch; None is ours.
      threads: that it may use on a CPU.
      waiting: how these wait for one another: "spinning" for some milliseconds, as they do by
        default, or "asleep".
    """

    def __init__(self, python: str | None, threads: int, *, waiting: str = "spinning") -> None:
        self._python = python = python or sys.executable
        paths = [str(_CHECKOUT), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [python, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
            | ({"OMP_WAIT_POLICY": "PASSIVE"} if waiting == "asleep" else {}),
        )
        try:
            self.about: dict[str, Any] = self._ask({"do": "begin", "threads": threads})
        except RuntimeError:
            self.close()
            raise

    def build(self, name: str, **options: Any) -> dict[str, Any]:
        """Make a loop, which is called by this name from then on; say what it is."""
        return self._ask({"do": "build", "name": name, "options": options})

    def epoch(self, name: str) -> dict[str, Any]:
        """Train a loop for an epoch and wait: its seconds, loss, and memory on a GPU."""
        return self._ask({"do": "epoch", "name": name})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{self._python} ended with code {self._process.wait()} when it was asked to"
                f" {request['do']}: what it said stands above."
            )
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"PyTorch in {self._python}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fastest(python: str | None, threads: int) -> Peer:
    """Start PyTorch with threads that wait in the way that is faster here.

    On a machine that does other work, threads that spin take the cores from those that they wait
    for: a small network was 10 times slower than with threads that sleep.
    """
    peers = {way: Peer(python, threads, waiting=way) for way in ("spinning", "asleep")}
    spent: dict[str, list[float]] = {way: [] for way in peers}
    for peer in peers.values():
        peer.build("try", network="resnet20", batch_size=64, steps=3)
        peer.epoch("try")
    for _ in range(3):
        for way, peer in peers.items():
            spent[way].append(peer.epoch("try")["seconds"])
    seconds = {way: sorted(times)[1] for way, times in spent.items()}
    best = min(seconds, key=lambda way: seconds[way])
    for way, peer in peers.items():
        if way != best:
            peer.close()
    peers[best].about |= {"waiting": best, "waiting_seconds": seconds}
    return peers[best]


# --------------------------------------------------------------------------------------------
# The other side.


class _Worker:
    def __init__(self) -> None:
        self._loops: dict[str, torch_loop.Loop] = {}
        self._torch: Any = None
        self._on_gpu = False

    def begin(self, threads: int) -> dict[str, Any]:
        torch = self._torch = importlib.import_module("torch")
        self._on_gpu = torch.cuda.is_available()
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        return {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if self._on_gpu else "cpu",
            "python": ".".join(map(str, sys.version_info[:3])),
        }

    def build(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        network = torch_loop.network(options.pop("network"))
        batch_size, stored = options.pop("batch_size"), options.pop("stored", False)
        count = batch_size * options.pop("steps")
        images, labels = random_images(count, stored=stored)
        device = "cuda" if self._on_gpu else "cpu"
        rows = batches(count, batch_size)
        self._loops[name] = torch_loop.Loop(
            network, images, labels, list(rows), device=device, **options
        )
        return {"parameters": sum(part.numel() for part in network.parameters())}

    def epoch(self, name: str) -> dict[str, Any]:
        cuda = self._torch.cuda
        if self._on_gpu:
            cuda.reset_peak_memory_stats()
            stays = cuda.memory_allocated()
        began = time.perf_counter()
        loss = self._loops[name].epoch()
        seconds = time.perf_counter() - began
        memory = cuda.max_memory_allocated() - stays if self._on_gpu else None
        return {"seconds": seconds, "loss": loss, "memory": memory}


def _serve() -> None:
    """Answer until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    worker = _Worker()
    for line in sys.stdin:
        request = json.loads(line)
        do: Callable[..., dict[str, Any]] = getattr(worker, request.pop("do"))
        try:
            answer = do(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
