r"""Simulate the answers of a report: thresholds, ranks, numbers of rows, temperatures of groups.

    python -m experiments.benchmarks.questions
    python -m experiments.benchmarks.questions --sets=100 --only=ranks

Each answer is given for many simulated sets whose truth is known. "found" is a mean over the sets,
with its standard error; "wanted" is what the answer promises.
"""

from collections.abc import Callable

import jax
import numpy as np
from absl import flags

from calib_jax import inference, metrics
from calib_jax.calibrators import temperature
from experiments.benchmarks import reference, timing
from experiments.benchmarks.simulated import clusters_of, equal_errors, one_model, scale_of
from experiments.running import cli

Found = dict[str, float]  # by what is measured, in one set

CLASSES, RISK, LEVEL, SIZE, POWER = 10, 0.2, 0.9, 0.05, 0.8
KEPT, ANSWERED = "the guaranteed error rate holds", "share answered"
FALSE = "two equal models are not tied"
TRUE = "two unequal models are not tied"
RANGES = "the ranges contain all true ranks"
ECE = "an ECE of .05 is significant"
TWO = "the difference of an ECE of .1 to a calibrated model is significant"
PRECISE = "the fitted T is within 10 % of the true one"
SHARED, ALONE = "NLL, by group - common", "NLL, each alone - common"
WANTED = {
    KEPT: f"at least {LEVEL:g}",
    FALSE: f"at most {SIZE:g}",
    RANGES: f"at least {1 - SIZE:g}",
    **dict.fromkeys((ECE, TWO), f"about {POWER:g}"),
    PRECISE: f"about {LEVEL:g}",
    SHARED: "about 0 or less",
}

flags.declare_key_flag("json")  # defined by `timing`
_SETS = flags.DEFINE_integer("sets", 200, "Simulated data sets of each case.", lower_bound=2)


def threshold(key: jax.Array, scale: float, dependent: bool) -> Found:
    """Guarantee an error rate above a threshold; compare the true rate, from other rows."""
    data = one_model(key, 1000, CLASSES, dependent, scale)
    clusters = clusters_of(1000) if dependent else None
    found = inference.guaranteed_coverage(*data, risk=RISK, level=LEVEL, clusters=clusters)
    z = scale_of(CLASSES) * np.random.default_rng(0).standard_normal((2**16, CLASSES))
    confidence, right = (reference.softmax(s * z).max(axis=1) for s in (scale, 1.0))
    above = right[confidence > found.threshold]  # nothing is above a threshold of NaN
    return {KEPT: not len(above) or 1 - np.mean(above) <= RISK, ANSWERED: found.coverage}


def ranks(key: jax.Array, rows: int) -> Found:
    """Rank two overconfident models of equal NLL, and both again with the better half of logits."""
    a, b, labels = equal_errors(key, rows, CLASSES, False)
    models = {"a": a, "b": b, "half a": 0.5 * a, "half b": 0.5 * b}
    found = {each.name: each for each in inference.ranks(models, labels, size=SIZE)}
    true = {"half a": (1, 2), "half b": (1, 2), "a": (3, 4), "b": (3, 4)}

    def apart(one: str, other: str) -> bool:
        return other not in found[one].tied_with

    return {
        FALSE: apart("a", "b") or apart("half a", "half b"),
        RANGES: all(
            found[name].best_rank <= best and worst <= found[name].worst_rank
            for name, (best, worst) in true.items()
        ),
        TRUE: sum(apart(one, f"half {other}") for one in "ab" for other in "ab") / 4,
    }


def rows_needed(key: jax.Array, pilot: int) -> Found:
    """Draw as many rows as a pilot says, and ask whether they answer."""
    of_pilot, of_data, of_coin, of_test = jax.random.split(key, 4)
    rows = one_model(of_pilot, pilot, CLASSES, False, 1.0)
    needed = inference.rows_needed(
        *rows, ece=0.05, ece_difference=0.1, temperature=0.1, power=POWER, level=LEVEL
    )
    random = np.random.default_rng(np.asarray(jax.random.key_data(of_coin)))

    def two_digits(rows: int | None) -> int:
        """Round up, so that few numbers of rows are compiled."""
        assert rows is not None
        step = 10 ** (len(str(rows)) - 2)
        return -(-rows // step) * step

    def stated(rows: int | None, gap: float) -> metrics.Stated:
        z = scale_of(CLASSES) * random.standard_normal((two_digits(rows), CLASSES))
        confidence = reference.softmax(z).max(axis=1)
        return metrics.Stated(confidence, random.random(len(z)) < confidence - gap)

    error = inference.noise_bound(
        metrics.ece, stated(needed.ece, 0.05), key=of_test, num_resamples=199
    )
    pair = [stated(needed.ece_difference, gap) for gap in (0.1, 0.0)]
    held_out = one_model(of_data, two_digits(needed.temperature), CLASSES, False, 1.0)
    fitted = temperature.fit(*held_out)
    return {
        ECE: error.p_value <= SIZE,
        TWO: inference.compare_calibration(*pair).p_value <= SIZE,
        PRECISE: abs(np.log(fitted.temperature)) <= np.log(1.1),
    }


def by_group(key: jax.Array, spread: float) -> Found:
    """Fit the temperatures of five groups, together and each alone; compare the NLL elsewhere."""
    of_fit, of_test, of_scale = jax.random.split(key, 3)
    sizes = np.array([20, 50, 100, 200, 500])
    scales = np.exp(spread * jax.random.normal(of_scale, (5,)))[:, None]

    def drawn(key: jax.Array, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        groups = np.repeat(np.arange(5), sizes)
        z, labels = one_model(key, int(sizes.sum()), CLASSES, False, 1.0)
        return np.asarray(z * scales[groups]), np.asarray(labels), groups

    fitted, (z, labels, groups) = drawn(of_fit, sizes), drawn(of_test, np.full(5, 4000))
    params = temperature.fit_by_group(*fitted)
    own = [temperature.fit(*(part[fitted[2] == g] for part in fitted[:2])) for g in range(5)]
    alone = np.array([each.temperature for each in own])[groups, None]
    common = metrics.nll(z / params.common, labels)
    shared = metrics.nll(temperature.apply_by_group(params, z, groups), labels)
    return {SHARED: float(shared - common), ALONE: float(metrics.nll(z / alone, labels) - common)}


# By name: the function, and its further arguments by case.
QUESTIONS: dict[str, tuple[Callable[..., Found], dict[str, tuple]]] = {
    "threshold": (
        threshold,
        {
            "calibrated": (1.0, False),
            "T = 1.5": (1.5, False),
            "T = 1.5, clusters of 20": (1.5, True),
        },
    ),
    "ranks": (ranks, {f"{rows:,} rows": (rows,) for rows in (200, 1000)}),
    "rows_needed": (rows_needed, {f"pilot of {rows:,}": (rows,) for rows in (200, 1000)}),
    "by_group": (by_group, {f"log T differs by {s:g}": (s,) for s in (0.0, 0.1, 0.4)}),
}
_ONLY = flags.DEFINE_list("only", list(QUESTIONS), f"Of {', '.join(QUESTIONS)}.")


def measured(question: str, case: str, sets: int) -> list[timing.Row]:
    """Simulate the sets of a case; return a row for each promise."""
    function, cases = QUESTIONS[question]
    keys = [jax.random.fold_in(jax.random.key(0), number) for number in range(sets)]
    answers = [function(key, *cases[case]) for key in keys]
    rows = []
    for name in answers[0]:
        values = np.array([float(answer[name]) for answer in answers])
        row = {"question": question, "case": case, "of": name, "found": float(values.mean())}
        row |= {"error": float(values.std() / np.sqrt(sets)), "wanted": WANTED.get(name)}
        rows.append(row | {"sets": sets})
    return rows


def main() -> None:
    """Simulate the chosen questions."""
    if unknown := set(_ONLY.value) - set(QUESTIONS):
        raise cli.Refused(f"--only has {sorted(unknown)[0]!r}: it is of {', '.join(QUESTIONS)}.")
    timing.report(
        [
            row
            for question in _ONLY.value
            for case in QUESTIONS[question][1]
            for row in measured(question, case, _SETS.value)
        ]
    )


if __name__ == "__main__":
    cli.run(main)
