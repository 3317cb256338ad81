"""Time the stream of JPEG images: images per second of wall time and of processor time.

    python -m experiments.benchmarks.stream
    python -m experiments.benchmarks.stream --threads=1,2,4 --out=stream.json

`data.named("imagenet")` reads JPEG files of noise, of ImageNet's usual size, in three ways:
decoding alone, batches on the host, and a stream to the device. The last row streams several
hundred batches and measures the memory. Other work on the machine disturbs processor time less
than wall time.
"""

import functools
import io
import os
import pathlib
import resource
import tempfile
import time
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import numpy as np
from PIL import Image

from calib_jax import data, train
from calib_jax.core.examples import Draw
from calib_jax.train.feeds import prefetching
from experiments.benchmarks import tables, timing

CLASSES, WIDTH, HEIGHT, BATCH_SIZE = 4, 500, 375, 64
DECODING = "decoding alone"


def write(folder: pathlib.Path, images: int) -> float:
    """Write JPEG files of noise in ImageNet's folders, and return their mean size in bytes."""
    random, sizes = np.random.default_rng(0), []
    for number in range(images):
        coarse = random.integers(256, size=(HEIGHT // 16, WIDTH // 16, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        pixels = np.asarray(smooth, float) + random.normal(scale=10, size=(HEIGHT, WIDTH, 1))
        for part in ("train", "val") if number < CLASSES else ("train",):
            path = folder / "imagenet" / part / f"n{number % CLASSES:08d}" / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=92)
            sizes.append(path.stat().st_size)
    return float(np.mean(sizes))


class Reader:
    """A data set and the order in which it is read; each method reads one epoch."""

    def __init__(self, folder: pathlib.Path) -> None:
        options = {"data_dir": str(folder), "validation_per_class": 1}
        self.source: Any = data.named("imagenet", **options).train
        numbers = train.shuffled(len(self.source), 0, 0)
        self.order = train.in_batches(numbers, BATCH_SIZE, drop_last=True)

    def decoded(self) -> None:
        """Read and decode every photograph."""
        for number in self.order.examples.reshape(-1).tolist():
            coded = self.source.coded.read(int(self.source.index[number]))
            with Image.open(io.BytesIO(coded)) as image:
                image.load()

    def drawn(self) -> None:
        """Build the training batches on the host."""
        for index in self.order.examples:
            self.source.drawn(index, Draw(0, 0))

    def streamed(self, threads: int, epoch: int = 0) -> list[int]:
        """Stream training batches to the device; return the resident bytes after each batch."""
        held, devices, draw = [], train.local_devices(1), Draw(0, epoch)
        for batch in prefetching.batches(
            self.source, self.order, devices, draw=draw, threads=threads
        ):
            jax.block_until_ready(batch)
            with open("/proc/self/statm") as file:
                held.append(int(file.read().split()[1]) * resource.getpagesize())
        return held


def compared(reader: Reader, threads: list[int], rounds: int) -> list[tables.Row]:
    """Time every way to read, in wall time and in processor time."""
    ways: timing.Calls = {
        DECODING: reader.decoded,
        "and window, mirror": reader.drawn,
        **{f"stream, threads: {n}": functools.partial(reader.streamed, n) for n in threads},
    }
    walls = timing.interleaved(ways, rounds=rounds, label="wall time")
    spent = timing.interleaved(ways, rounds=rounds, label="processor", clock=time.process_time)
    rows = timing.compared(spent, DECODING, speed=True, task="stream")
    for row in rows:
        wall, images = float(np.median(walls[row["name"]])), reader.order.examples.size
        row |= {
            "images_per_second": images / wall,
            "images_per_core_second": images / row["seconds"],
        }
    return rows


def memory(reader: Reader, threads: int, batches: int) -> tables.Row:
    """Stream batches, and measure how much the memory grows after the first quarter."""
    held: list[int] = []
    for epoch in range(-(-batches // len(reader.order.examples))):
        held += reader.streamed(threads, epoch)
    settled = max(held[: max(1, len(held) // 4)])
    return {
        "task": "stream",
        "name": f"{len(held)} batches, threads: {threads}",
        "settled_megabytes": settled / 1e6,
        "growth_megabytes": (max(held) - settled) / 1e6,
    }


COLUMNS = {
    "": tables.text("name"),
    "images/s": tables.number("images_per_second"),
    "images/s of a core": tables.number("images_per_core_second"),
    "share of decoding": tables.ratio,
    "rounds": tables.text("rounds"),
    "MB after a quarter": tables.number("settled_megabytes"),
    "MB more afterwards": tables.number("growth_megabytes", "+.1f"),
}


def main(
    images: Annotated[int, "How many photographs are made."] = 320,
    threads: Annotated[Sequence[str], "Numbers of threads that read a stream."] = ("1", "2"),
    batches: Annotated[int, "Streamed to measure memory."] = 400,
    rounds: tables.Rounds = 7,
) -> tables.Report:
    """Write the JPEG files, and time reading them."""
    counts = [int(number) for number in threads]
    setting: tables.Row = {"batch_size": BATCH_SIZE, "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        setting["mean_kilobytes"] = write(pathlib.Path(folder), images) / 1e3
        reader = Reader(pathlib.Path(folder))
        results = [*compared(reader, counts, rounds), memory(reader, max(counts), batches)]
    sections = {"stream": tables.Section("Photographs", COLUMNS)}
    return tables.Report("Stream", results, sections, setting=setting)


if __name__ == "__main__":
    tables.run(main)
