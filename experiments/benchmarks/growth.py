"""Measure how time and memory grow with the size of the data, as exponents.

    python -m experiments.benchmarks.growth --page=experiments/results/growth.md
    python -m experiments.benchmarks.growth --parts=losses,classes
    python -m experiments.benchmarks.growth --parts=stream --most=1000000000

Every part runs in a process of its own, which measures sizes in ascending order: the shortest of a
few calls after compilation, and the peak of the process's memory above its start. The exponent of
a part is the slope of the logarithm of the time against the logarithm of the size, by least
squares, with the standard error of the slope. An exponent of 1 is linear.
"""

import concurrent.futures
import functools
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from calib_jax import inference, losses, metrics
from experiments.benchmarks import tables
from experiments.benchmarks.training_work import Work, exchanged
from experiments.reports import summary

_SEVERAL = {name: metrics.named(name) for name in ("accuracy", "nll", "ece", "adaptive_ece")}
_STREAMED = {name: metrics.named(name) for name in ("accuracy", "nll", "brier", "ece")}
_BLOCK = 10**6  # rows that a stream adds at a time
_LONG = 10.0  # seconds of a call beside which compiling is short
_KEY = jax.random.key(1)
Call = Callable[[], Any]


def _sample(rows: int, classes: int) -> tuple[jax.Array, jax.Array]:
    """Draw logits that are right in half of the rows, without copies of the logits."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((rows, classes), np.float32)
    right = random.random(rows) < 0.5
    labels = np.where(right, np.argmax(logits, axis=1), random.integers(0, classes, rows))
    return jnp.asarray(logits), jnp.asarray(labels)


def _loss(name: str, rows: int, classes: int) -> Call:
    logits, labels = _sample(rows, classes)
    objective = losses.objective(name)
    state = objective.init(classes, jnp.ones(classes))
    step = jax.jit(jax.value_and_grad(lambda z: jnp.sum(objective.value(state, z, labels, None))))
    return lambda: step(logits)


def _loss_of_logits(name: str, size: int) -> Call:
    return _loss(name, size // 1000, 1000)


def _values(rows: int, classes: int) -> Call:
    return functools.partial(metrics.values_of, _SEVERAL, *_sample(rows, classes))


def _stream(rows: int) -> Call:
    logits, labels = map(np.asarray, _sample(min(rows, _BLOCK), 10))

    def added() -> Any:
        stream = metrics.Stream(_STREAMED, row_limit=1000)
        for _ in range(rows // len(labels)):
            stream.update(logits, labels)
        return stream.compute()

    return added


def _bootstrap(rows: int, clusters: int = 0) -> Call:
    ids = np.arange(rows) % clusters if clusters else None
    options: dict[str, Any] = {"key": _KEY, "num_resamples": 100, "clusters": ids}
    return functools.partial(inference.bootstrap, metrics.ece, *_sample(rows, 10), **options)


def _estimates(rows: int) -> Call:
    bounded = {name: metrics.named(name) for name in ("ece", "adaptive_ece")}
    return functools.partial(inference.estimates, bounded, *_sample(rows, 10), key=_KEY)


def _test(name: str, rows: int) -> Call:
    return functools.partial(inference.calibration_test, name, *_sample(rows, 10))


def _sweep(runs: int) -> Call:
    logits, labels = map(np.asarray, _sample(500, 10))
    members = []
    for number in range(runs):
        of_run = logits * np.float32(1 + number / 100)
        sets = (of_run, labels), (of_run[::-1], labels[::-1])
        rows = [{"epoch": 1.0, "step": 1, "validation_error": 0.1, "validation_nll": 0.3}]
        members.append(summary.Run(f"loss {number % 5}", number // 5, *sets, rows))
    options: dict[str, Any] = {"baseline": "loss 0", "num_bins": 15, "num_resamples": 200}
    return functools.partial(summary.summarize, members, about={"what": ""}, **options)


# The unit of the sizes, the sizes, and a function that prepares the call of a size.
PARTS: Mapping[str, tuple[str, Sequence[int], Callable[[int], Call]]] = {
    **{
        name: ("logits", (10**6, 10**7, 10**8), functools.partial(_loss_of_logits, name))
        for name in ("cross_entropy", "focal", "mmce")
    },
    "metrics of classes": ("classes", (10**3, 10**4, 10**5), lambda n: _values(256, n)),
    "focal of classes": ("classes", (10**3, 10**4, 10**5), lambda n: _loss("focal", 256, n)),
    "metrics of rows": ("rows", (10**4, 10**5, 10**6), lambda n: _values(n, 10)),
    "stream": ("pixels", (10**6, 10**7, 10**8, 10**9), _stream),
    "bootstrap": ("rows", (10**4, 10**5, 10**6), _bootstrap),
    "bootstrap of clusters": ("clusters", (100, 1000, 10**4), lambda n: _bootstrap(10**5, n)),
    "estimates": ("rows", (10**4, 10**5, 10**6), _estimates),
    **{
        f"{name} test": ("rows", (10**4, 10**5, 10**6), functools.partial(_test, name))
        for name in ("kuiper", "spiegelhalter")
    },
    "report of a sweep": ("runs", (5, 20, 100), _sweep),
}


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(part: str, most: int, seconds: float) -> list[tables.Row]:
    """Measure the sizes of a part in this process; leave out calls of more than so many seconds."""
    unit, sizes, prepared = PARTS[part]
    rows: list[tables.Row] = []
    start = _peak()
    for size in (size for size in sizes if size <= most):
        expected = rows[-1]["seconds"] * size / rows[-1]["size"] if rows else 0.0
        if expected > seconds:
            break
        call = prepared(size)
        if expected < _LONG:  # otherwise compiling takes a small part of the time
            jax.block_until_ready(call())
        times = list[float]()
        while not times or (len(times) < 5 and sum(times) < 1):
            began = time.perf_counter()
            jax.block_until_ready(call())
            times.append(time.perf_counter() - began)
        row = {"name": part, "unit": unit, "size": size, "seconds": min(times)}
        rows.append(row | {"bytes": _peak() - start})
        del call  # and the data of this size
    return rows


def exponent(sizes: Any, values: Any) -> tuple[float, float]:
    """Fit the slope of log value against log size; return it with its standard error.

    >>> exponent([1, 10, 100], [2, 20, 200])
    (1.0, 0.0)
    """
    line = scipy.stats.linregress(np.log(sizes), np.log(values))
    return round(float(line.slope), 6), round(float(line.stderr), 6)


def growth(rows: Sequence[tables.Row]) -> tables.Row:
    """Return the exponents of the sizes of a part."""
    sizes = [row["size"] for row in rows]
    result: tables.Row = {"name": rows[0]["name"], "unit": rows[0]["unit"], "sizes": sizes}
    result |= {"seconds": [row["seconds"] for row in rows], "bytes": rows[-1]["bytes"]}
    if len(rows) > 1:
        result["time"] = exponent(sizes, result["seconds"])
        result["memory"] = exponent(sizes, [max(1, row["bytes"]) for row in rows])
    return result


def crossing(devices: Sequence[int]) -> Iterator[tables.Row]:
    """Count the bytes that a device exchanges in a training step of 16 images."""
    for loss in ("cross_entropy", "mmce"):
        works = {number: Work("resnet20", 16 // number, 1, loss=loss) for number in devices}
        counts = [exchanged(work, number)[0].total() for number, work in works.items()]
        yield {"task": "devices", "name": loss, "sizes": list(devices), "exchanged": counts}


def _listed(key: str, form: str) -> tables.Cell:
    return lambda row: ", ".join(format(value, form) for value in row[key])


def _exponent(key: str) -> tables.Cell:
    return lambda row: "{:.2f} ± {:.2f}".format(*row[key]) if key in row else ""


SECTIONS = {
    "growth": tables.Section(
        "Time and memory",
        {
            "": tables.text("name"),
            "of": tables.text("unit"),
            "sizes": _listed("sizes", ",.0f"),
            "seconds": _listed("seconds", ".3g"),
            "exponent of the time": _exponent("time"),
            "exponent of the memory": _exponent("memory"),
            "MB at the largest": tables.number("bytes", scale=1e-6),
        },
        "Memory is the peak of the process above its start, the data included.",
    ),
    "devices": tables.Section(
        "Bytes that a device exchanges in a step of a ResNet-20, 16 images on all devices",
        {
            "": tables.text("name"),
            "devices": _listed("sizes", ",.0f"),
            "bytes": _listed("exchanged", ",.0f"),
        },
    ),
}


def main(
    parts: Annotated[Sequence[str], f"Of {', '.join(PARTS)}, devices; all by default."] = (),
    most: Annotated[int, "The largest size of all parts."] = 10**9,
    seconds: Annotated[int, "A size that would take longer is left out."] = 60,
) -> tables.Report:
    """Measure every part in a process of its own."""
    tables.check("parts", parts, [*PARTS, "devices"])
    chosen = parts or [*PARTS, "devices"]
    results: list[tables.Row] = []
    context = multiprocessing.get_context("spawn")
    for part in (part for part in PARTS if part in chosen):
        with concurrent.futures.ProcessPoolExecutor(1, context) as fresh:
            rows = fresh.submit(measure, part, most, seconds).result()
        results.append({"task": "growth"} | growth(rows))
    if "devices" in chosen:
        results += crossing((1, 2, 4, 8))
    return tables.Report("Growth", results, SECTIONS)


if __name__ == "__main__":
    tables.run(main)
