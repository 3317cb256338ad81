"""Statements of Guo et al. 2017 that a computation decides: ECE, NLL and temperature scaling."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from calib_jax import calibrators, losses, metrics
from experiments.papers.entry import computed
from experiments.papers.judge import limits
from experiments.papers.judge.rules import above, every
from experiments.papers.judge.values import Value

BINS = 15
SIZES = (100, 1_000, 10_000, 100_000)


def errors_and_bins() -> dict[str, Value]:
    """Compute ECE and MCE of random predictions, and of some whose bins match exactly."""
    generator = np.random.default_rng(0)
    cases, groups, size, classes = 200, 8, 30, 16
    # An odd multiple of 1 / 30 is the centre of a bin, and the confidences lie around it in pairs.
    hits = 2 * generator.integers(1, 15, (cases, groups, 1)) + 1
    spread = generator.uniform(0, 0.03, (cases, groups, size // 2))
    matched = hits / size + np.concatenate([spread, -spread], axis=-1)
    right = np.arange(size) < hits
    free = generator.uniform(0.07, 0.999, matched.shape)
    shape = (2 * cases, groups * size)
    confidence = np.concatenate([matched, free]).reshape(shape)
    right = np.concatenate([right, generator.uniform(size=free.shape) < free**2]).reshape(shape)
    others = (1 - confidence[..., None]) / (classes - 1) * np.ones(classes - 1)
    logits = np.log(np.concatenate([confidence[..., None], others], axis=-1)).astype(np.float32)

    @jax.jit
    @jax.vmap
    def errors(z: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        sums = metrics.ece.stat(z, y, num_bins=BINS)
        return metrics.ece.value(sums), metrics.mce.value(metrics.mce.stat(z, y, num_bins=BINS))

    ece, mce = (np.asarray(values) for values in errors(logits, np.where(right, 0, 1)))
    # The same from the definition, in float64.
    numbers = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.stack(
        [np.sum((confidence - right) * (numbers == b), axis=-1) for b in range(BINS)], axis=-1
    )
    reference = np.sum(np.abs(gaps), axis=-1) / shape[1]
    return {
        "largest ECE - MCE": Value(float(np.max(ece - mce)), rows=len(ece)),
        "largest ECE of matched bins": Value(float(np.max(ece[:cases])), rows=cases),
        "least ECE of other bins": Value(float(np.min(ece[cases:])), rows=cases),
        "distance from the definition": Value(float(np.max(np.abs(ece - reference)))),
    }


ZERO_IFF_MATCHED = every(
    limits.at_most(1e-7, "largest ECE - MCE"),
    limits.at_most(1e-6, "largest ECE of matched bins"),
    limits.above(1e-6, "least ECE of other bins"),
)


def error_of_calibrated() -> dict[str, Value]:
    """Compute the mean ECE of a calibrated binary source, at four numbers of examples."""
    generator = np.random.default_rng(0)
    repeats = 1_000
    errors: dict[int, np.ndarray] = {}
    floors = {}
    for size in SIZES:
        values = np.empty(repeats)
        floor = np.empty(repeats)
        for repeat in range(repeats):
            chance = scipy.special.expit(2 * generator.standard_normal(size, dtype=np.float32))
            confidence = np.maximum(chance, 1 - chance)
            gap = confidence - (generator.random(size, dtype=np.float32) < confidence)
            numbers = np.minimum((confidence * BINS).astype(int), BINS - 1)
            values[repeat] = np.abs(np.bincount(numbers, gap)).sum() / size
            variances = np.bincount(numbers, confidence * (1 - confidence))
            floor[repeat] = np.sqrt(2 / np.pi * variances).sum() / size
        errors[size], floors[size] = values, float(np.mean(floor))

    def value(samples: np.ndarray, size: int, note: str = "") -> Value:
        deviation = float(np.std(samples, ddof=1) / np.sqrt(repeats))
        mean = float(np.mean(samples))
        return Value(mean, deviation, repeats - 1, seeds=repeats, rows=size, note=note)

    means = {
        f"mean ECE at n = {size}": value(
            errors[size], size, f"by the formula for Gaussian noise: {floors[size]:.4g}"
        )
        for size in SIZES
    }
    pairs = itertools.pairwise(SIZES)
    return means | {
        f"fall from n = {small} to {large}": value(errors[small] - errors[large], large)
        for small, large in pairs
    }


NEVER_ZERO = above(
    *(f"mean ECE at n = {size}" for size in SIZES),
    *(f"fall from n = {a} to {b}" for a, b in itertools.pairwise(SIZES)),
)


def entropy_gap() -> dict[str, Value]:
    """Compare the expected cross-entropy beyond that of the truth with the KL divergence."""
    generator = np.random.default_rng(0)
    cross_entropy = jax.jit(losses.cross_entropy)
    deviation, least, at_truth, count = 0.0, np.inf, 0.0, 0
    with jax.enable_x64(True):
        for classes in (2, 3, 10, 100):
            truth, other = generator.dirichlet(np.ones(classes), (2, 500))
            near = truth * np.exp(1e-3 * generator.standard_normal(truth.shape))
            for model in (other, near / near.sum(axis=-1, keepdims=True)):
                expected = np.asarray(cross_entropy(np.log(model), truth))
                excess = expected - np.asarray(cross_entropy(np.log(truth), truth))
                divergence = scipy.special.rel_entr(truth, model).sum(axis=-1)
                deviation = max(deviation, float(np.max(np.abs(excess - divergence))))
                least = min(least, float(np.min(divergence)))
                count += len(truth)
            entropy = scipy.special.entr(truth).sum(axis=-1)
            own = np.asarray(cross_entropy(np.log(truth), truth))
            at_truth = max(at_truth, float(np.max(np.abs(own - entropy))))
    return {
        "largest deviation from KL": Value(deviation, rows=count),
        "least KL where p differs from the truth": Value(least, rows=count),
        "largest deviation from the entropy at the truth": Value(at_truth),
    }


MINIMISED_BY_TRUTH = every(
    limits.at_most(
        1e-9, "largest deviation from KL", "largest deviation from the entropy at the truth"
    ),
    limits.above(0, "least KL where p differs from the truth"),
)


def scaled(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Apply the library's temperature scaling."""
    unfitted: Any = None
    params = calibrators.temperature.Params(jnp.asarray(temperature, logits.dtype), state=unfitted)
    return np.asarray(calibrators.temperature.apply(params, logits))


def predictions_kept() -> dict[str, Value]:
    """Count predictions that a temperature changes, ties after rounding apart."""
    generator = np.random.default_rng(0)
    scale = 10.0 ** generator.uniform(-2, 2, (5_000, 1))
    logits = (scale * generator.standard_normal((5_000, 10))).astype(np.float32)
    # In half of the rows the two largest logits are neighbouring numbers.
    order = np.argsort(logits[::2], axis=-1)
    rows = np.arange(len(order))
    top = logits[::2][rows, order[:, -1]]
    logits[::2][rows, order[:, -2]] = np.nextafter(top, np.float32(-np.inf))
    before = np.argmax(logits, axis=-1)
    temperatures = np.geomspace(0.05, 100, 12)
    changed = tied = 0
    for temperature in temperatures:
        after = scaled(logits, temperature)
        tie = after[np.arange(len(after)), before] == np.max(after, axis=-1)
        changed += int(np.sum(~tie))
        tied += int(np.sum(tie & (np.argmax(after, axis=-1) != before)))
    total = len(logits) * len(temperatures)
    return {
        "changed predictions": Value(changed, rows=total),
        "ties after rounding": Value(tied, rows=total, note="first of equal logits is another"),
    }


def entropy_rises() -> dict[str, Value]:
    """Compute the entropy of softmax(z / T) on a grid of temperatures, and its derivative."""
    generator = np.random.default_rng(0)
    temperatures = np.geomspace(0.1, 100, 100)
    fall, equal, deviation, count = -np.inf, 0, 0.0, 0
    for classes in (2, 3, 10, 100, 1_000):
        scale = 10.0 ** generator.uniform(-1, 1, (5, 1, 1))
        logits = scale * generator.standard_normal((5, 1, classes))
        logs = scipy.special.log_softmax(logits / temperatures[:, None], axis=-1)
        entropy = -np.sum(np.exp(logs) * logs, axis=-1)
        change = np.diff(entropy, axis=-1)
        fall = max(fall, float(np.max(-change)))
        certain = (entropy[:, :-1] > 1e-9) & (np.log(classes) - entropy[:, 1:] > 1e-9)
        equal += int(np.sum(certain & (change <= 0)))
        # dH/dT = Var_p(z) / T^3, which is positive unless all logits are equal.
        mean = np.sum(np.exp(logs) * logits, axis=-1, keepdims=True)
        variance = np.sum(np.exp(logs) * np.square(logits - mean), axis=-1)
        slope = variance / temperatures**3
        step = 1e-5 * temperatures[:, None]
        ends = [
            scipy.special.log_softmax(logits / (temperatures[:, None] + sign * step), axis=-1)
            for sign in (1, -1)
        ]
        high, low = (-np.sum(np.exp(end) * end, axis=-1) for end in ends)
        deviation = max(deviation, float(np.max(np.abs((high - low) / (2 * step[:, 0]) - slope))))
        count += change.size
    return {
        "largest fall of the entropy": Value(fall, rows=count),
        "steps without a rise": Value(equal, rows=count, note="entropies near 0 or log K apart"),
        "deviation of dH/dT from Var(z) / T^3": Value(deviation),
    }


def uniform_limit() -> dict[str, Value]:
    """Compute the distance of softmax(z / T) from 1/K at three temperatures."""
    generator = np.random.default_rng(0)
    temperatures = (1e2, 1e4, 1e6)
    distances = np.zeros(3)
    for classes in (2, 10, 1_000):
        logits = generator.uniform(-10, 10, (100, classes))
        for place, temperature in enumerate(temperatures):
            probabilities = scipy.special.softmax(logits / temperature, axis=-1)
            distance = float(np.max(np.abs(probabilities - 1 / classes)))
            distances[place] = max(distances[place], distance)
    falls = distances[:-1] / distances[1:]
    return {
        **{
            f"distance at T = {temperature:g}": Value(distance, rows=300)
            for temperature, distance in zip(temperatures, distances.tolist(), strict=True)
        },
        "deviation of the fall from 100, relative": Value(float(np.max(np.abs(falls / 100 - 1)))),
    }


def most_uncertain_solution() -> dict[str, Value]:
    """Fit T by NLL, and compare the entropy with distributions of the same mean weighted logit."""
    generator = np.random.default_rng(0)
    size, trials = 100, 40
    logits = 3 * generator.standard_normal((size, 5))
    labels = np.array([generator.choice(5, p=scipy.special.softmax(row / 3)) for row in logits])
    with jax.enable_x64(True):
        temperature = float(calibrators.temperature.fit(logits, labels).temperature)
    solution = scipy.special.softmax(logits / temperature, axis=-1)
    wanted = float(np.mean(logits[np.arange(size), labels]))

    def weighted(probabilities: np.ndarray) -> float:
        return float(np.mean(np.sum(probabilities * logits, axis=-1)))

    def tilted(start: np.ndarray) -> np.ndarray:
        """Multiply by exp(s z) such that the constraint is met; the mean rises with s."""
        low, high = -20.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            probabilities = scipy.special.softmax(np.log(start) + middle * logits, axis=-1)
            low, high = (middle, high) if weighted(probabilities) < wanted else (low, middle)
        return probabilities

    best = float(np.mean(scipy.special.entr(solution).sum(axis=-1)))
    excess, violation = -np.inf, 0.0
    for _ in range(trials):
        # From near the solution to far from it.
        noise = 10.0 ** generator.uniform(-2, 1) * generator.standard_normal(logits.shape)
        other = tilted(scipy.special.softmax(logits / temperature + noise, axis=-1))
        violation = max(violation, abs(weighted(other) - wanted))
        excess = max(excess, float(np.mean(scipy.special.entr(other).sum(axis=-1))) - best)
    return {
        "violation of the constraint at T": Value(abs(weighted(solution) - wanted), rows=size),
        "largest entropy of others minus that of the solution": Value(excess, rows=trials),
        "violation of the constraint by the others": Value(violation, rows=trials),
        "fitted T": Value(temperature, rows=size),
    }


ENTRY = computed(
    {
        "guo-ece-zero-iff-bins-match": (errors_and_bins, ZERO_IFF_MATCHED),
        "guo-perfect-calibration-needs-infinite-data": (error_of_calibrated, NEVER_ZERO),
        "guo-nll-minimised-by-truth": (entropy_gap, MINIMISED_BY_TRUTH),
        "guo-ts-keeps-accuracy": (predictions_kept, limits.at_most(0, "changed predictions")),
        "guo-ts-raises-entropy": (
            entropy_rises,
            limits.at_most(1e-12, "largest fall of the entropy"),
        ),
        "guo-ts-infinite-is-uniform": (
            uniform_limit,
            every(
                limits.at_most(1e-5, "distance at T = 1e+06"),
                limits.at_most(0.1, "deviation of the fall from 100, relative"),
            ),
        ),
        "guo-ts-max-entropy-solution": (
            most_uncertain_solution,
            every(
                limits.at_most(1e-6, "violation of the constraint at T"),
                limits.at_most(0, "largest entropy of others minus that of the solution"),
            ),
        ),
    }
)
