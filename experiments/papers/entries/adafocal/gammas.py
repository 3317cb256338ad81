"""Ghosh et al., limitations of focal loss: fixed gammas 0, 3, 4 and 5 in bins of equal mass."""

import numpy as np

from experiments.papers.entries.trainings import CE, FL3, FL4, FL5
from experiments.papers.entry import Entry
from experiments.papers.judge import estimates, paired, rules
from experiments.papers.judge.comparisons import Runs, Seeds, ce2, change
from experiments.papers.judge.estimates import Estimate
from experiments.papers.judge.rules import FAILS, HOLDS, SIZE, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

GAMMAS = (0, 3, 4, 5)
BINS = 15
TWO_BEST = "p-value that fewer than two gammas are best in a bin"


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the gammas on the test set and, bin by bin, on the validation set."""
    by_gamma = {gamma: runs[f"gamma_{gamma}"] for gamma in GAMMAS}
    values = {
        f"AdaCE2({gamma}) - AdaCE2(4)": ce2(
            by_gamma[gamma], by_gamma[4], binned=estimates.adaptive_squared_error
        )
        for gamma in (0, 3, 5)
    }
    gaps = {
        gamma: [[_gap(run, number) for run in seeds] for number in range(BINS)]
        for gamma, seeds in by_gamma.items()
    }
    for number in (0, 7):
        for gamma in GAMMAS:
            values[_name(number, gamma)] = paired.over_seeds_and_rows(gaps[gamma][number])
    least, clear, p_values = _best(gaps)
    values["gammas that are least in a bin"] = Value(len(set(least)), note=f"by bin: {least}")
    values["gammas that are clearly best in a bin"] = Value(len(clear), note=f"{sorted(clear)}")
    values[TWO_BEST] = Value(
        min(1.0, p_values[1] * (len(GAMMAS) - 1)), note="of partial conjunction"
    )
    for a, b in ((0, 3), (3, 5)):
        first, second = by_gamma[a], by_gamma[b]
        values[f"C_val({a}) - C_val({b})"] = change(
            first, second, lambda run: estimates.mean(run.validation.confidence)
        )
        values[f"C_train({a}) - C_train({b})"] = _training_confidence(first, second)
    return values


def _name(number: int, gamma: int) -> str:
    return f"C - A in bin {number}, gamma {gamma}"


def _gap(run: Trained, number: int) -> Estimate:
    """Compute confidence - accuracy in a bin of equal mass of the validation set."""
    confidence = run.validation.confidence
    ranks = np.argsort(np.argsort(confidence, kind="stable"), kind="stable")
    return estimates.mean_where(
        confidence - run.validation.right, ranks * BINS // len(ranks) == number
    )


def _best(gaps: dict[int, list[list[Estimate]]]) -> tuple[list[int], set[int], list[float]]:
    """Find the gamma with the least gap in each bin.

    Returns:
      the gamma with the least gap in each bin; the gammas whose gap in some bin is significantly
      smaller than those of all others; and the sorted p-values, one for each gamma, of the
      hypothesis that the gamma is best in no bin: its least p-value times the number of bins.
    """
    least, clear = [], set()
    p_values = dict.fromkeys(GAMMAS, 1.0)
    for number in range(BINS):
        sizes = {gamma: _sizes(gaps[gamma][number]) for gamma in GAMMAS}
        best = min(GAMMAS, key=lambda gamma: np.mean([size.value for size in sizes[gamma]]))
        least.append(best)
        others = (
            paired.over_seeds_and_rows(
                [b - a for a, b in zip(sizes[best], sizes[other], strict=True)]
            )
            for other in GAMMAS
            if other != best
        )
        largest = max(value.p_above() for value in others)
        p_values[best] = min(p_values[best], BINS * largest)
        if largest < SIZE:
            clear.add(best)
    return least, clear, sorted(p_values.values())


def _sizes(seeds: list[Estimate]) -> list[Estimate]:
    """Return gaps with the sign of their mean over seeds."""
    sign = float(np.sign(np.mean([estimate.value for estimate in seeds])))
    return [Estimate(sign * estimate.value, sign * estimate.influence) for estimate in seeds]


def _training_confidence(first: Seeds, second: Seeds) -> Value:
    def confidence(run: Trained) -> float:
        row = run.log[-1]
        return sum(
            row[f"training_by_correctness_{group}_share"]
            * row[f"training_by_correctness_{group}_confidence"]
            for group in ("correct", "wrong")
            if row[f"training_by_correctness_{group}_share"]
        )

    changes = [confidence(a) - confidence(b) for a, b in zip(first, second, strict=True)]
    return paired.over_seeds(changes, note="from the logs, over seeds alone")


def _several_best() -> Rule:
    clear, least = "gammas that are clearly best in a bin", "gammas that are least in a bin"

    def judge(values: Values) -> Judgement:
        p = min(1.0, values[TWO_BEST].value)
        if values[clear].value >= 2:
            return Judgement(HOLDS, p)
        return Judgement(FAILS if values[least].value == 1 else UNDECIDED, p)

    words = (
        "holds if two gammas are each best in a bin, with the 90 % intervals of all differences"
        " clear of 0; does not hold if one gamma is least in all bins; undecided otherwise"
    )
    return Rule(words, judge, (clear, least, TWO_BEST))


def _patterns() -> Rule:
    positive = [_name(0, 0), _name(0, 3), _name(7, 0)]
    negative = [_name(7, 4), _name(7, 5)]
    names = tuple(_name(number, gamma) for number in (0, 7) for gamma in GAMMAS)

    def judge(values: Values) -> Judgement:
        reversed_p = [values[name].p_below() for name in positive]
        reversed_p += [values[name].p_above() for name in negative]
        if min(reversed_p) < SIZE:
            return Judgement(FAILS, min(1.0, min(reversed_p) * len(reversed_p)))
        signs = [values[name].p_above() for name in positive]
        signs += [values[name].p_below() for name in negative]
        size = {name: abs(value.value) for name, value in values.items()}
        smaller = max(size[_name(0, 4)], size[_name(0, 5)])
        ordered = min(size[_name(0, 0)], size[_name(0, 3)]) > smaller and size[_name(7, 3)] == min(
            size[_name(7, gamma)] for gamma in GAMMAS
        )
        return Judgement(HOLDS if max(signs) < SIZE and ordered else UNDECIDED, max(signs))

    words = (
        "holds if in bin 0 the 90 % intervals of gamma 0 and 3 lie above 0 and their gaps are"
        " larger than those of 4 and 5, and in bin 7 those of 4 and 5 lie below 0, that of 0 above"
        " 0, and gamma 3 is nearest 0; does not hold if a sign is reversed; undecided otherwise"
    )
    return Rule(words, judge, names)


ENTRY = Entry(
    claims={
        "adafocal-gamma4-best-fixed": rules.above(
            *(f"AdaCE2({gamma}) - AdaCE2(4)" for gamma in (0, 3, 5))
        ),
        "adafocal-no-single-gamma-best": _several_best(),
        "adafocal-bin-patterns": _patterns(),
        "adafocal-gamma-lowers-both-confidences": rules.above(
            *(
                f"C_{part}({a}) - C_{part}({b})"
                for part in ("val", "train")
                for a, b in ((0, 3), (3, 5))
            )
        ),
    },
    runs={"gamma_0": CE, "gamma_3": FL3, "gamma_4": FL4, "gamma_5": FL5},
    statistic=statistic,
)
