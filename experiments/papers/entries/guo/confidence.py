"""Cross-entropy on CIFAR-10: overconfidence, and what one temperature changes."""

import numpy as np

from experiments.papers.entries.trainings import CE
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, paired, rules
from experiments.papers.judge.comparisons import Part, Runs
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value

LEAST_SHARE = 0.01  # of the examples, in a bin that is counted


def statistic(runs: Runs) -> dict[str, Value]:
    """Describe the confidence of cross-entropy before and after the temperature."""
    seeds = runs["ce"]
    top_rows, top_errors = zip(*(_top_two(run.test) for run in seeds), strict=True)
    below = [_underconfident_bins(run.scaled) for run in seeds]
    by_nll = [run.logits.scaled(run.temperature_by_nll) for run in seeds]
    temperatures = [run.temperature for run in seeds]
    return {
        "confidence - accuracy": comparisons.mean(seeds, lambda run: estimates.gap(run.test)),
        "share of overconfident bins": paired.over_seeds(
            [_overconfident_bins(run.test) for run in seeds]
        ),
        "share of examples in the top two bins": paired.over_seeds(top_rows),
        "share of the ECE in the top two bins": paired.over_seeds(top_errors),
        "CE2(CE) - CE2(CE+TS)": comparisons.ce2(
            seeds, seeds, comparisons.before, comparisons.after
        ),
        "CE2(CE) - CE2(CE+TS by NLL)": paired.difference_of_errors(
            [estimates.squared_error(run.test) for run in seeds],
            [estimates.squared_error(part) for part in by_nll],
        ),
        "CE2(T by NLL) - CE2(T by ECE grid)": paired.difference_of_errors(
            [estimates.squared_error(part) for part in by_nll],
            [estimates.squared_error(run.scaled) for run in seeds],
        ),
        "temperature": paired.over_seeds(temperatures),
        "share of bins underconfident after T": paired.over_seeds(below),
        "seeds with T above 1.5": comparisons.share([value > 1.5 for value in temperatures]),
        "change of the confidence of right predictions": comparisons.mean(
            seeds,
            lambda run: (
                comparisons.of_right("confidence")(run.scaled)
                - comparisons.of_right("confidence")(run.test)
            ),
        ),
    }


def _gaps(part: Part) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean residual of the bins that are counted, its deviation, and their shares."""
    bins = estimates.squared_error(part)
    counted = bins.size >= max(2, LEAST_SHARE * len(bins.residual))
    size = bins.size[counted]
    mean = bins.total[counted] / size
    variance = bins.square[counted] / size - np.square(mean)
    return mean, np.sqrt(variance / size), size / len(bins.residual)


def _overconfident_bins(part: Part) -> float:
    return float(np.mean(_gaps(part)[0] > 0))


def _underconfident_bins(part: Part) -> float:
    """Return the share of bins whose 90 % interval of confidence - accuracy lies below 0."""
    mean, deviation, _ = _gaps(part)
    return float(np.mean(mean + 1.645 * deviation < 0))


def _top_two(part: Part) -> tuple[float, float]:
    """Return the shares of the top two of 15 bins in the examples and in the ECE."""
    bins = estimates.squared_error(part)
    gaps = np.abs(bins.total)
    return float(bins.size[-2:].sum() / bins.size.sum()), float(gaps[-2:].sum() / gaps.sum())


def _top_bins() -> Rule:
    names = ("share of examples in the top two bins", "share of the ECE in the top two bins")

    def judge(values: Values) -> Judgement:
        shares = [values[name] for name in names]
        large = sum(share.value > 0.5 for share in shares)
        p_holds = max(share.p_above(0.5) for share in shares)
        p_fails = max(share.p_below(0.5) for share in shares)
        state = {2: HOLDS, 1: UNDECIDED, 0: FAILS}[large]
        return Judgement(state, min(p_holds, p_fails))

    words = "holds if both shares are above one half; does not hold if neither is; undecided else"
    return Rule(words, judge, names)


def _underconfident() -> Rule:
    names = ("share of bins underconfident after T", "seeds with T above 1.5")

    def judge(values: Values) -> Judgement:
        bins, large = (values[name] for name in names)
        holds = large.value == 1 and bins.value >= 1 / 3
        return Judgement(HOLDS if holds else UNDECIDED, bins.p_above(1 / 3))

    return Rule(
        "of seeds whose T is above 1.5, holds if after T the 90 % interval of confidence - accuracy"
        " lies below 0 in at least one third of the bins; undecided otherwise, since the claim"
        " is that it can happen",
        judge,
        names,
    )


ENTRY = Entry(
    claims={
        "guo-resnet-overconfident": rules.every(
            rules.above("confidence - accuracy"), rules.at_least("share of overconfident bins", 0.8)
        ),
        "guo-ts-lowers-ece": rules.above("CE2(CE) - CE2(CE+TS)"),
        "mukhoti-top-bin-dominates-ece": _top_bins(),
        "mukhoti-high-t-underconfident": _underconfident(),
        "mukhoti-ece-grid-stronger-than-nll": rules.above("CE2(T by NLL) - CE2(T by ECE grid)"),
    },
    runs={"ce": CE},
    statistic=statistic,
)
