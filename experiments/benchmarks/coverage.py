r"""Measure how often intervals contain the truth and how often tests reject, on simulated data.

    python -m experiments.benchmarks.coverage
    python -m experiments.benchmarks.coverage --sets=100 --examples=200 --only=one_model

A calibrated model has logits $z \sim s N(0, I)$ and labels drawn from softmax(z); its logits times
T are overconfident if T > 1. True values are computed on a million logits in float64. A nominal
90 % interval should contain the truth in 90 % of the sets or more, and a test at 5 % should reject
at most 5 % of true hypotheses; the standard error of a share p of n sets is sqrt(p (1 - p) / n).
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from calib_jax import inference, metrics
from experiments.benchmarks import reference, timing
from experiments.running import cli

LEVEL, SIZE = 0.9, 0.05
CLUSTER_SIZE, CORRELATION = 20, 0.3
STATES = 4  # of the feature that only one of two models sees
TOP_LABEL = {name: metrics.named(name) for name in ("ece", "adaptive_ece", "mce")}
MEANS = {name: metrics.named(name) for name in ("accuracy", "nll", "brier")}
TESTS = ("cox", "kuiper", "spiegelhalter", "squared_error", "temperature")
DRAWN = ("kuiper", "squared_error")  # tests that simulate their null distribution

Outcomes = dict[str, tuple[float, float, float, float]]  # low, high, p-value, truth
_NAN = math.nan


def scale_of(classes: int) -> float:
    """Return the standard deviation of the logits."""
    return 1.5 if classes == 2 else 2.0 if classes < 100 else 4.0


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def one_model(key: jax.Array, rows: int, classes: int, dependent: bool, temperature: float) -> Any:
    """Draw logits and labels; the labels of a cluster of rows depend on each other if asked."""
    noise, coin = jax.random.split(key)
    z = scale_of(classes) * jax.random.normal(noise, (rows, classes))
    return temperature * z, _labels(coin, z, dependent)


@functools.partial(jax.jit, static_argnums=(1, 2))
def confident(key: jax.Array, rows: int, classes: int, gap: float) -> Any:
    """Draw a model with confidences of .94 to .99, right with probability confidence - gap.

    All examples lie in one of 15 bins, so every top-label error over bins is the gap.
    """
    of_confidence, of_class, coin = jax.random.split(key, 3)
    confidence = jax.random.uniform(of_confidence, (rows, 1), minval=0.94, maxval=0.99)
    predicted = jax.nn.one_hot(jax.random.randint(of_class, (rows,), 0, classes), classes)

    def log_p(top: jax.Array) -> jax.Array:
        return jnp.log(jnp.where(predicted > 0, top, (1 - top) / (classes - 1)))

    return log_p(confidence), jax.random.categorical(coin, log_p(confidence - gap))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def sharper(key: jax.Array, rows: int, classes: int, dependent: bool) -> Any:
    """Draw two calibrated models: A averages over a feature that B sees, so B is sharper."""
    of_rows, of_states, state_key, coin = jax.random.split(key, 4)
    shared = 0.1 * jax.random.normal(of_rows, (rows, 1, classes))
    hidden = (3.0 if classes >= 100 else 6.0) * jax.random.normal(of_states, (STATES, classes))
    log_p = jax.nn.log_softmax(shared + hidden[None])  # [rows, states, classes]
    state = jax.random.randint(state_key, (rows,), 0, STATES)
    seen = jnp.take_along_axis(log_p, state[:, None, None], axis=1)[:, 0]
    average = jax.nn.logsumexp(log_p, axis=1) - jnp.log(STATES)
    return average, seen, _labels(coin, seen, dependent)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def equal_errors(key: jax.Array, rows: int, classes: int, dependent: bool) -> Any:
    """Draw two overconfident models with equal errors: each sees one of two exchangeable parts."""
    of_a, of_b, coin = jax.random.split(key, 3)
    shape, scale = (rows, STATES, classes), scale_of(classes)
    part_a, part_b = (scale * jax.random.normal(k, shape) for k in (of_a, of_b))
    log_p_a = jax.nn.log_softmax(part_a[:, :1] + part_b)
    log_p_b = jax.nn.log_softmax(part_a + part_b[:, :1])
    logits_a, logits_b = (1.5 * jax.nn.logsumexp(p, axis=1) for p in (log_p_a, log_p_b))
    return logits_a, logits_b, _labels(coin, log_p_a[:, 0], dependent)


def clusters_of(rows: int) -> np.ndarray:
    """Return the cluster of each row."""
    return np.arange(rows) // CLUSTER_SIZE


def _labels(key: jax.Array, z: jax.Array, dependent: bool) -> jax.Array:
    """Draw labels from softmax(z), of dependent rows with a Gaussian copula in each cluster."""
    if not dependent:
        return jax.random.categorical(key, z)
    of_cluster, of_row = jax.random.split(key)
    rows = z.shape[0]
    common = jax.random.normal(of_cluster, (-(-rows // CLUSTER_SIZE),))[clusters_of(rows)]
    alone = jax.random.normal(of_row, (rows,))
    normal = np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * alone
    # The most probable class comes first, so that its hits are correlated.
    order = jnp.argsort(-z, axis=1)
    below = jnp.cumsum(jnp.take_along_axis(jax.nn.softmax(z), order, axis=1), axis=1)
    rank = jnp.sum(below[:, :-1] <= jax.scipy.stats.norm.cdf(normal)[:, None], axis=1)
    return jnp.take_along_axis(order, rank[:, None], axis=1)[:, 0]


@functools.cache
def truth(classes: int, temperature: float, examples: int = 2**20) -> Mapping[str, float]:
    """Compute the expectations of metrics over the labels, on many logits."""
    random, block, parts = np.random.default_rng(0), 2**14, []
    for start in range(0, examples, block):
        z = scale_of(classes) * random.standard_normal((min(block, examples - start), classes))
        q, p = reference.softmax(z), reference.softmax(temperature * z)
        top = p.argmax(axis=1)[:, None]
        confidence, right = (np.take_along_axis(of, top, axis=1)[:, 0] for of in (p, q))
        nll = -np.sum(q * np.log(np.maximum(p, 1e-300)), axis=1)
        parts.append((confidence, right, nll, np.sum(np.square(p) - 2 * p * q, axis=1) + 1))
    confidence, right, nll, brier = map(np.concatenate, zip(*parts, strict=True))
    gap, equal = (
        of(confidence, right) / examples for of in (reference.gaps, reference.gaps_of_equal_count)
    )
    share = np.bincount(reference.bins(confidence), minlength=reference.BINS) / examples
    values = {
        "accuracy": np.mean(right),
        "nll": np.mean(nll),
        "brier": np.mean(brier),
        "ece": np.sum(np.abs(gap)),
        "adaptive_ece": np.sum(np.abs(equal)),
        "squared_error": np.sum(np.square(gap) / np.where(share > 0, share, 1)),
    }
    return {name: float(value) for name, value in values.items()}


def _of(result: Any, true: float) -> tuple[float, float, float, float]:
    p_value = getattr(result, "p_value", None)
    return float(result.low), float(result.high), _NAN if p_value is None else float(p_value), true


def _bounds(data: Any, true: Mapping[str, float], options: dict[str, Any], key: Any) -> Outcomes:
    """Compute noise bounds of binned errors, and the interval of the squared error."""
    bounds = inference.noise_bound(TOP_LABEL, *data, key=key, num_resamples=199, **options)
    found = {name: _of(bound, true.get(name, _NAN)) for name, bound in bounds.items()}
    error = inference.debiased_squared_error(*data, **options)
    low, high, *_ = _of(error, 0.0)
    return found | {"squared_error": (low, high, _NAN, true["squared_error"])}


def _one(key: Any, rows: int, classes: int, dependent: bool, temperature: float) -> Outcomes:
    data_key, key = jax.random.split(key)
    logits, labels = data = one_model(data_key, rows, classes, dependent, temperature)
    true = truth(classes, temperature)
    clusters = clusters_of(rows) if dependent else None
    options: dict[str, Any] = {"level": LEVEL, "clusters": clusters}
    found = _bounds(data, true, options, key)
    estimates = inference.estimates(MEANS, *data, key=key, num_resamples=199, **options)
    found |= {name: _of(estimate, true[name]) for name, estimate in estimates.items()}
    for name in TESTS:
        drawn: dict[str, Any] = {"key": key, "num_resamples": 199} if name in DRAWN else {}
        test = inference.calibration_test(name, logits, labels, clusters=clusters, **drawn)
        found[f"test {name}"] = (_NAN, _NAN, float(test.p_value), _NAN)
    return found


def _confident(key: Any, rows: int, classes: int, dependent: bool, gap: float) -> Outcomes:
    data_key, key = jax.random.split(key)
    true = {"ece": gap, "adaptive_ece": gap, "mce": gap, "squared_error": gap**2}
    return _bounds(confident(data_key, rows, classes, gap), true, {"level": LEVEL}, key)


def _two(key: Any, rows: int, classes: int, dependent: bool, draw: Callable[..., Any]) -> Outcomes:
    data_key, key = jax.random.split(key)
    data = draw(data_key, rows, classes, dependent)
    options: dict[str, Any] = {"level": LEVEL, "clusters": clusters_of(rows) if dependent else None}
    ece = inference.compare_ece(*data, key=key, num_resamples=199, **options)
    return {
        "compare_calibration": _of(inference.compare_calibration(*data, **options), 0.0),
        "compare_ece": _of(ece, 0.0),
    }


# By name: the function, its last argument by case, and the cases whose hypothesis is true.
QUESTIONS: dict[str, tuple[Callable[..., Outcomes], dict[str, Any], tuple[str, ...]]] = {
    "one_model": (_one, {f"T = {t:g}": t for t in (1.0, 1.15, 1.5)}, ("T = 1",)),
    "confident": (_confident, {f"gap {g:g}": g for g in (0.0, 0.01, 0.03)}, ("gap 0",)),
    "two_models": (
        _two,
        {"both calibrated, B sharper": sharper, "equal errors": equal_errors},
        ("both calibrated, B sharper", "equal errors"),
    ),
}

_SETS = flags.DEFINE_integer("sets", 200, "Simulated data sets of each case.", lower_bound=2)
_EXAMPLES = flags.DEFINE_list("examples", ["200", "1000"], "Examples of a set.")
_CLASSES = flags.DEFINE_list("classes", ["2", "10"], "Classes.")
_ONLY = flags.DEFINE_list("only", list(QUESTIONS), f"Of {', '.join(QUESTIONS)}.")
_CLUSTERS = flags.DEFINE_bool("clusters", False, "Draw clusters of 20 dependent examples.")


def measured(
    question: str, case: str, rows: int, classes: int, sets: int, dependent: bool
) -> list[timing.Row]:
    """Simulate the sets of a case; return a row for each interval and test."""
    function, cases, null = QUESTIONS[question]
    outcomes: dict[str, list[tuple[float, ...]]] = {}
    for number in range(sets):
        key = jax.random.fold_in(jax.random.key(0), number)
        for name, outcome in function(key, rows, classes, dependent, cases[case]).items():
            outcomes.setdefault(name, []).append(outcome)
    result = []
    for name, of_sets in outcomes.items():
        low, high, p_value, true = np.array(of_sets).T
        row: timing.Row = {"of": name, "case": case, "examples": rows, "classes": classes}
        if np.isfinite(true).any() and np.isfinite(low).any():
            slack = 1e-6  # rounding of float32
            row["covers"] = float(np.mean((low <= true + slack) & (true - slack <= high)))
            row["width"] = float(np.mean(high - low))
        if np.isfinite(p_value).any():
            row["size" if case in null else "power"] = float(np.mean(p_value <= SIZE))
        result.append(row | {"sets": sets})
    return result


def main() -> None:
    """Measure the chosen questions."""
    if unknown := set(_ONLY.value) - set(QUESTIONS):
        raise cli.Refused(f"--only has {sorted(unknown)[0]!r}: it is of {', '.join(QUESTIONS)}.")
    for flag, values in (("examples", _EXAMPLES.value), ("classes", _CLASSES.value)):
        for value in values:
            if not value.isdigit() or int(value) < 2:
                raise cli.Refused(f"--{flag} must be whole numbers of at least 2, got {value!r}.")
    rows: list[timing.Row] = []
    for question in _ONLY.value:
        for case in QUESTIONS[question][1]:
            for examples in map(int, _EXAMPLES.value):
                for classes in map(int, _CLASSES.value):
                    size = (examples, classes, _SETS.value, _CLUSTERS.value)
                    rows += measured(question, case, *size)
    timing.report(rows)


if __name__ == "__main__":
    cli.run(main)
