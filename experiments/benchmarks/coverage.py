"""Measure how often bootstrap intervals contain the truth, on data whose truth is known.

    python -m experiments.benchmarks.coverage
    python -m experiments.benchmarks.coverage --examples=500 --draws=2000 --out=coverage.json

Logits are normal, and labels are drawn from softmax(logits / T): a model that is calibrated at
T = 1, and overconfident at T = 1.5. The true value of a metric is its expectation over labels,
on a million logits. A nominal 90 % interval should contain it in 90 % of the draws.

The intervals of means over examples do. Those of the ECE do not: it is a sum of absolute values,
which noise raises. The percentile interval adds the noise of resampling once more, and the basic
interval subtracts it. The true ECE of a calibrated model is 0, which neither contains.
"""

import functools
from collections.abc import Mapping
from typing import Annotated

import jax
import numpy as np
import tqdm

from calib_jax import metrics
from experiments.benchmarks import reference, tables

MEANS = {name: metrics.named(name) for name in ("accuracy", "nll", "brier")}
ERRORS = {
    name: metrics.named(name) for name in ("ece", "adaptive_ece", "debiased_rms_calibration_error")
}


def truth(classes: int, temperature: float, examples: int = 2**20) -> dict[str, float]:
    """Compute the expectation of every metric over labels, in NumPy, on many logits."""
    drawn, _ = reference.draw(jax.random.key(1), examples, classes, temperature)
    logits = np.asarray(drawn, np.float64)
    p, q = reference.softmax(logits), reference.softmax(logits / temperature)
    top = p.argmax(axis=1)[:, None]
    confidence, right = (np.take_along_axis(of, top, axis=1)[:, 0] for of in (p, q))
    gap, equal = (
        function(confidence, right) for function in (reference.gaps, reference.gaps_of_equal_count)
    )
    count = np.maximum(np.bincount(reference.bins(confidence), minlength=reference.BINS), 1)
    return {
        "accuracy": float(right.mean()),
        "nll": float(-(q * np.log(p)).sum(axis=1).mean()),
        "brier": float((np.square(p).sum(axis=1) - 2 * (p * q).sum(axis=1) + 1).mean()),
        "ece": float(np.abs(gap).sum() / examples),
        "adaptive_ece": float(np.abs(equal).sum() / examples),
        "debiased_rms_calibration_error": float(np.sqrt((np.square(gap) / count).sum() / examples)),
    }


def coverage(
    several: Mapping[str, metrics.Metric],
    *,
    examples: int,
    classes: int,
    temperature: float,
    draws: int,
    resamples: int,
    level: float,
) -> list[tables.Row]:
    """Draw data sets, and count how often the intervals of each metric contain the truth."""
    true, methods = truth(classes, temperature), ("percentile", "basic")
    observed: dict[str, list[list[float]]] = {name: [] for name in several}
    interval = functools.partial(metrics.interval, level=level)
    intervals = jax.jit(
        lambda drawn, e: {m: interval(drawn, method=m, estimate=e) for m in methods}
    )
    for i in tqdm.trange(draws, desc=f"T = {temperature}", leave=False, disable=None):
        key, boot = jax.random.split(jax.random.fold_in(jax.random.key(0), i))
        data = reference.draw(key, examples, classes, temperature)
        value = metrics.values_of(several, *data)
        samples = metrics.bootstrap(several, *data, key=boot, num_resamples=resamples)
        ends = jax.device_get(intervals(samples, value))
        for name, kept in observed.items():
            intervals_of = (ends[method][name] for method in methods)
            kept.append(
                [float(value[name]), *(low <= true[name] <= high for low, high in intervals_of)]
            )
    rows = []
    for name, kept in observed.items():
        row = {"task": "coverage", "metric": name, "temperature": temperature, "true": true[name]}
        means = np.mean(kept, axis=0).tolist()
        rows.append(row | dict(zip(("mean_estimate", *methods), means, strict=True)))
    return rows


COLUMNS = {
    "metric": tables.text("metric"),
    "T": tables.text("temperature"),
    "truth": tables.number("true", ".4f"),
    "mean estimate": tables.number("mean_estimate", ".4f"),
    "percentile": tables.number("percentile", ".1%"),
    "basic": tables.number("basic", ".1%"),
}
SECTIONS = {"coverage": tables.Section("How often intervals contain the truth", COLUMNS)}


def main(
    examples: Annotated[int, "Of each draw."] = 1000,
    classes: Annotated[int, "How many."] = 5,
    draws: Annotated[int, "How many data sets."] = 1000,
    resamples: Annotated[int, "Of each data set."] = 500,
) -> tables.Report:
    """Measure at both temperatures, at a nominal coverage of 90 %."""
    options = {"examples": examples, "classes": classes, "draws": draws, "resamples": resamples}
    statistics = functools.partial(coverage, MEANS | ERRORS, level=0.9, **options)
    rows = [row for temperature in (1.0, 1.5) for row in statistics(temperature=temperature)]
    setting = {"level": 0.9, "standard_error_over_draws": (0.9 * 0.1 / draws) ** 0.5}
    return tables.Report("Coverage", rows, SECTIONS, setting=setting)


if __name__ == "__main__":
    tables.run(main)
