"""Time the stream of photographs: how many a core reads a second, and what for.

    python -m experiments.benchmarks.stream
    python -m experiments.benchmarks.stream --threads=1,2,4 --out=stream.json

Photographs of ImageNet's usual size and weight are made out of noise, with ImageNet's folders, and
read by `data.named("imagenet")`. The first table says what one thread does with a photograph; the
second streams batches to the device with so many threads; the last streams several hundred batches
and looks at the memory. A figure a core is photographs by seconds of processor time, of all
threads, so neighbours on the same machine disturb it little; they do disturb the seconds that pass.
"""

import io
import json
import os
import pathlib
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import PIL
from absl import app, flags
from PIL import Image, features

from calib_jax import data, train
from calib_jax.core.examples import Draw
from calib_jax.train import feeding
from experiments import provenance
from experiments.benchmarks import timing

_IMAGES = flags.DEFINE_integer("images", 320, "How many photographs are made.", lower_bound=8)
_WIDTH = flags.DEFINE_integer("width", 500, "Of a photograph.", lower_bound=32)
_HEIGHT = flags.DEFINE_integer("height", 375, "Of a photograph.", lower_bound=32)
_BATCH = flags.DEFINE_integer("batch_size", 64, "Photographs of a batch.", lower_bound=1)
_BATCHES = flags.DEFINE_integer("batches", 400, "While memory is looked at.", lower_bound=100)
_THREADS = flags.DEFINE_list("threads", ["1", "2"], "Numbers of threads that read a stream.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "How often each is timed.", lower_bound=3)
_OUT = flags.DEFINE_string("out", None, "Write all numbers, with their provenance, to this JSON.")

CLASSES = 4
QUALITY = 92
DRAW = Draw(seed=0, epoch=0)
Row = dict[str, Any]


def photograph(random: np.random.Generator, width: int, height: int) -> bytes:
    """Make a JPEG file: noise with the spectrum of natural images, fine and coarse in patches."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    shape = (3, height, width // 2 + 1)
    waves = random.normal(size=shape) + 1j * random.normal(size=shape)
    waves[1:] *= 0.3  # colours change less than brightness
    rough, smooth = (
        np.fft.irfft2(waves / np.maximum(frequency, 0.5 / width) ** power, s=(height, width))
        for power in (0.9, 1.6)
    )
    where = smooth[:1] > np.median(smooth[0])
    mixed = np.where(where, rough / rough.std(), smooth / smooth.std())
    red = mixed[:1] + np.array([1, -0.5, 0])[:, None, None] * mixed[1:2]
    pixels = np.clip(120 + 55 * (red + np.array([0, -0.5, 1])[:, None, None] * mixed[2:]), 0, 255)
    coded = io.BytesIO()
    Image.fromarray(np.moveaxis(pixels, 0, -1).astype(np.uint8)).save(
        coded, "JPEG", quality=QUALITY
    )
    return coded.getvalue()


def write(folder: pathlib.Path) -> float:
    """Write as many photographs as were asked for, and return their mean size in bytes."""
    random = np.random.default_rng(0)
    sizes = []
    for number in range(_IMAGES.value):
        coded = photograph(random, _WIDTH.value, _HEIGHT.value)
        sizes.append(len(coded))
        for part in ("train", "val") if number < CLASSES else ("train",):
            path = folder / "imagenet" / part / f"n{number % CLASSES:08d}" / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(coded)
    return float(np.mean(sizes))


class Setting:
    """The data set, and the order in which it is read."""

    def __init__(self, folder: pathlib.Path) -> None:
        options = {"data_dir": str(folder), "validation_per_class": 1}
        self.source: Any = data.named("imagenet", **options).train
        self.devices = train.local_devices(1)
        numbers = train.shuffled(len(self.source), 0, 0)
        self.order = train.in_batches(numbers, _BATCH.value, drop_last=True)
        self.count = self.order.examples.size

    def decoded(self) -> None:
        """Read and decode every photograph, and do nothing with it."""
        for number in self.order.examples.reshape(-1).tolist():
            coded = self.source.coded.read(int(self.source.index[number]))
            with Image.open(io.BytesIO(coded)) as image:
                image.load()

    def drawn(self) -> None:
        """Make the batches of training on the host."""
        for index in self.order.examples:
            self.source.drawn(index, DRAW)

    def centred(self) -> None:
        """Make the batches of evaluation on the host."""
        for index in self.order.examples:
            self.source[index]

    def streamed(self, threads: int) -> Callable[[], None]:
        """Make what brings the batches of training to the device."""

        def run() -> None:
            for batch in feeding.batches(
                self.source, self.order, self.devices, draw=DRAW, threads=threads
            ):
                jax.block_until_ready(batch)

        return run


def compared(setting: Setting) -> list[Row]:
    """Time all of it in the same rounds, by the clock and by the processor."""
    threads = [int(number) for number in _THREADS.value]
    works: dict[str, Callable[[], None]] = {
        "decoding alone": setting.decoded,
        "and window, mirror": setting.drawn,
        "centre, for evaluation": setting.centred,
        **{f"stream, threads: {number}": setting.streamed(number) for number in threads},
    }
    busy: dict[str, list[float]] = {name: [] for name in works}

    def watched(name: str) -> Callable[[], None]:
        def call() -> None:
            began = time.process_time()
            works[name]()
            busy[name].append(time.process_time() - began)

        return call

    calls = {name: watched(name) for name in works}
    passed = timing.interleaved(calls, rounds=_ROUNDS.value, label="stream")
    first = next(iter(works))
    rows = []
    for name in works:
        spent = np.array(busy[name][-_ROUNDS.value :])
        rows.append(
            {
                "task": "stream" if name.startswith("stream") else "one thread",
                "name": name,
                "rounds": _ROUNDS.value,
                "images_per_second": setting.count / float(np.median(passed[name])),
                "images_per_core_second": setting.count / float(np.median(spent)),
                "share_of_decoding": timing.ratio(np.array(busy[first][-_ROUNDS.value :]), spent),
            }
        )
    return rows


def memory(setting: Setting) -> Row:
    """Stream several hundred batches; what is held after the first quarter should be all."""
    threads = max(int(number) for number in _THREADS.value)
    held, done, epoch = [], 0, 0
    while done < _BATCHES.value:
        stream = feeding.batches(
            setting.source, setting.order, setting.devices, draw=Draw(0, epoch), threads=threads
        )
        for batch in stream:
            jax.block_until_ready(batch)
            held.append(_held())
            done += 1
        epoch += 1
    settled = max(held[: done // 4])
    return {
        "task": "memory",
        "name": f"{done} batches, threads: {threads}",
        "batch_megabytes": setting.order.examples.shape[1] * setting.source.size**2 * 3 / 1e6,
        "settled_megabytes": settled / 1e6,
        "growth_megabytes": (max(held) - settled) / 1e6,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _held() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def line(row: Row) -> str:
    """Lay one result out as text."""
    if row["task"] == "memory":
        return (
            f"  {row['name']}: {row['settled_megabytes']:,.0f} MB after a quarter,"
            f" {row['growth_megabytes']:+,.1f} MB afterwards; a batch is"
            f" {row['batch_megabytes']:.1f} MB"
        )
    return (
        f"  {row['name']:24s} {row['images_per_second']:8,.0f} images/s"
        f" {row['images_per_core_second']:8,.0f} images/s of a core"
        f"   decoding is {row['share_of_decoding']['median']:.0%}"
    )


def main(_: list[str]) -> None:
    """Run, print the tables, write the JSON."""
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        size = write(pathlib.Path(folder))
        setting = Setting(pathlib.Path(folder))
        about = {
            "images": _IMAGES.value,
            "width": _WIDTH.value,
            "height": _HEIGHT.value,
            "mean_kilobytes": size / 1e3,
            "batch_size": _BATCH.value,
            "pillow": PIL.__version__,
            "libjpeg_turbo": features.version("libjpeg_turbo"),
        }
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        results = compared(setting)
        print(*map(line, results), sep="\n", flush=True)
        results.append(memory(setting))
        print(line(results[-1]))
    if _OUT.value:
        # Of the last minute: what else ran on this machine.
        load = {"load_before": before[0], "load_after": os.getloadavg()[0]}
        found = {"provenance": provenance.describe(), "setting": about | load, "results": results}
        with open(_OUT.value, "w") as file:
            json.dump(found, file, indent=1)
        print(f"written to {_OUT.value}")


if __name__ == "__main__":
    app.run(main)
