"""Measure how often bootstrap intervals contain the truth, on data whose truth is known.

    python -m experiments.benchmarks.coverage
    python -m experiments.benchmarks.coverage --examples=500 --draws=2000 --out=coverage.json

Logits are normal, and labels are drawn from softmax(logits / T): a model that is calibrated at
T = 1, and overconfident at T = 1.5. The true value of a metric is its expectation over labels,
on a million logits. A nominal 90 % interval should contain it in 90 % of the draws.

Means over examples do that. ECE does not, and no resampling makes it: it is a sum of absolute
values, to which noise adds. Of a calibrated model the true ECE is 0, which no interval of
positive numbers contains; of a miscalibrated one, the percentile interval lies too high by the
noise that resampling adds once more, and the basic interval takes that off.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import tqdm
from absl import app, flags

from calib_jax import metrics
from experiments import provenance

_EXAMPLES = flags.DEFINE_integer("examples", 1000, "Of each draw.", lower_bound=2)
_CLASSES = flags.DEFINE_integer("classes", 5, "How many.", lower_bound=2)
_DRAWS = flags.DEFINE_integer("draws", 1000, "How many data sets.", lower_bound=2)
_RESAMPLES = flags.DEFINE_integer("resamples", 500, "Of each data set.", lower_bound=2)
_LEVEL = flags.DEFINE_float("level", 0.9, "Nominal coverage.", lower_bound=0, upper_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the draws.")
_OUT = flags.DEFINE_string("out", None, "Write all numbers, with their provenance, to this JSON.")

MEANS = {name: metrics.named(name) for name in ("accuracy", "nll", "brier")}
ERRORS = {
    name: metrics.named(name) for name in ("ece", "adaptive_ece", "debiased_rms_calibration_error")
}


def draw(key: jax.Array, examples: int, classes: int, temperature: float) -> tuple[Any, Any]:
    """Draw logits, and labels that a model of this temperature would be right about."""
    noise, coin = jax.random.split(key)
    logits = 2 * jax.random.normal(noise, (examples, classes))
    return logits, jax.random.categorical(coin, logits / temperature)


def truth(classes: int, temperature: float, examples: int = 2**20) -> dict[str, float]:
    """Compute the expectation of every metric over labels, in NumPy, on many logits."""
    logits = np.asarray(draw(jax.random.key(1), examples, classes, temperature)[0], np.float64)

    def softmax(values: np.ndarray) -> np.ndarray:
        spread = np.exp(values - values.max(axis=1, keepdims=True))
        return spread / spread.sum(axis=1, keepdims=True)

    p, q = softmax(logits), softmax(logits / temperature)
    top = p.argmax(axis=1)[:, None]
    confidence, right = (np.take_along_axis(of, top, axis=1)[:, 0] for of in (p, q))
    order = np.argsort(confidence)
    fixed = np.minimum(np.ceil(15 * confidence).astype(int) - 1, 14)
    gap = np.bincount(fixed, confidence - right, 15)
    count = np.bincount(fixed, minlength=15)
    equal = [np.abs(part.sum()) for part in np.array_split((confidence - right)[order], 15)]
    return {
        "accuracy": float(right.mean()),
        "nll": float(-(q * np.log(p)).sum(axis=1).mean()),
        "brier": float((np.square(p).sum(axis=1) - 2 * (p * q).sum(axis=1) + 1).mean()),
        "ece": float(np.abs(gap).sum() / examples),
        "adaptive_ece": float(sum(equal) / examples),
        "debiased_rms_calibration_error": float(
            np.sqrt((np.square(gap)[count > 0] / count[count > 0]).sum() / examples)
        ),
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
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Draw data sets, and count how often the intervals of each metric contain the truth."""
    true = truth(classes, temperature)
    inside = {(name, method): 0 for name in several for method in ("percentile", "basic")}
    values: dict[str, list[float]] = {name: [] for name in several}
    ends = jax.jit(functools.partial(_ends, level=level))
    for i in tqdm.trange(draws, desc=f"T = {temperature}", leave=False, disable=None):
        key, boot = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
        data = draw(key, examples, classes, temperature)
        value = metrics.values_of(several, *data)
        samples = metrics.bootstrap(several, *data, key=boot, num_resamples=resamples)
        for name, (percentile, basic) in jax.device_get(ends(samples, value)).items():
            values[name].append(float(value[name]))
            for method, (low, high) in (("percentile", percentile), ("basic", basic)):
                inside[name, method] += bool(low <= true[name] <= high)
    return [
        {
            "metric": name,
            "temperature": temperature,
            "true": true[name],
            "mean_estimate": float(np.mean(values[name])),
            "draws": draws,
            "examples": examples,
            "classes": classes,
            "resamples": resamples,
            "level": level,
            "seed": seed,
            "percentile": inside[name, "percentile"] / draws,
            "basic": inside[name, "basic"] / draws,
        }
        for name in several
    ]


def _ends(samples: dict[str, jax.Array], value: dict[str, jax.Array], level: float) -> Any:
    percentile = metrics.interval(samples, level)
    basic = metrics.interval(samples, level, method="basic", estimate=value)
    return {name: (tuple(percentile[name]), tuple(basic[name])) for name in samples}


def table(rows: list[dict[str, Any]]) -> str:
    """Lay the coverage of all metrics out as text."""
    lines = [f"{'':32s}{'T':>5s}{'truth':>10s}{'mean':>10s}{'percentile':>12s}{'basic':>8s}"]
    for row in rows:
        lines.append(
            f"{row['metric']:32s}{row['temperature']:5.1f}{row['true']:10.4f}"
            f"{row['mean_estimate']:10.4f}{row['percentile']:12.1%}{row['basic']:8.1%}"
        )
    return "\n".join(lines)


def main(_: list[str]) -> None:
    """Run at both temperatures, print the table, write the JSON."""
    rows = []
    for temperature in (1.0, 1.5):
        rows += coverage(
            MEANS | ERRORS,
            examples=_EXAMPLES.value,
            classes=_CLASSES.value,
            temperature=temperature,
            draws=_DRAWS.value,
            resamples=_RESAMPLES.value,
            level=_LEVEL.value,
            seed=_SEED.value,
        )
    error = np.sqrt(_LEVEL.value * (1 - _LEVEL.value) / _DRAWS.value)
    print(
        f"{_DRAWS.value} draws of {_EXAMPLES.value} examples in {_CLASSES.value} classes,"
        f" {_RESAMPLES.value} resamples each; nominal {_LEVEL.value:.0%}, its standard error over"
        f" the draws {error:.1%}.\n{table(rows)}"
    )
    if _OUT.value:
        report = {"provenance": provenance.describe(), "results": rows}
        with open(_OUT.value, "w") as file:
            json.dump(report, file, indent=1)
        print(f"written to {_OUT.value}")


if __name__ == "__main__":
    app.run(main)
