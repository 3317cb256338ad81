"""Over-fitting of cross-entropy on CIFAR-10: Guo et al. and section 3 of Mukhoti et al.

The NLL of the test set is compared at the last epoch and at the epoch of its least value.
"""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.papers.entries.trainings import CE
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, paired, rules
from experiments.papers.judge.comparisons import Runs, Seeds
from experiments.papers.judge.estimates import Columns, Estimate
from experiments.papers.judge.values import Value
from experiments.papers.store import curves
from experiments.papers.store.measures import drops, first_drop, least
from experiments.papers.store.records import Trained

if TYPE_CHECKING:
    import matplotlib.figure

MEASURE = "turning_points"
LARGE = 0.05  # a rise of the NLL that counts, as a share of its least value


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the last epoch with those of the least test NLL."""
    seeds = runs["ce"]
    from_least = [(run.logits.columns, run.columns(MEASURE, "least")) for run in seeds]
    later = [(run.logits.columns, run.columns(MEASURE, "least_later")) for run in seeds]
    correlations, epochs = [], []
    for run in seeds:
        rows = [row for row in run.log if row["epoch"] >= first_drop(run.log)["epoch"]]
        series = [[row[key] for row in rows] for key in ("test_nll", "test_ece")]
        correlations.append(comparisons.rank_correlation(*series))
        epochs.append(f"{least(run.log, 'test_nll')['epoch']:.0f}")
    return {
        "NLL(last) - NLL(least)": _change(from_least, lambda part: estimates.mean(part.nll)),
        "error(least) - error(last)": _change(
            [(a, b) for b, a in from_least], lambda part: estimates.error(part)
        ),
        "test NLL(last) / NLL(least)": paired.over_seeds_and_rows(
            [
                estimates.ratio(estimates.mean(last.nll), estimates.mean(first.nll))
                for last, first in later
            ]
        ),
        "train NLL(last) - train NLL(least)": comparisons.logged(seeds, _training_change),
        "NLL of wrong, last - least": _change(from_least, comparisons.of_wrong("nll")),
        "NLL of right, last - least": _change(from_least, comparisons.of_right("nll")),
        "CE2(last) - CE2(least)": paired.difference_of_errors(
            [estimates.squared_error(last) for last, _ in later],
            [estimates.squared_error(first) for _, first in later],
        ),
        "rank correlation of test NLL and ECE after the drop": paired.over_seeds(correlations),
        **_falls(seeds, "right", "correct"),
        **_falls(seeds, "wrong", "wrong"),
        "epochs of the least test NLL": Value(
            float(np.mean([float(epoch) for epoch in epochs])), note=", ".join(epochs)
        ),
    }


def figures(runs: Runs) -> dict[str, "matplotlib.figure.Figure"]:
    """Draw figure 1 of Mukhoti et al.: NLL, ECE and entropy over training."""
    ce = runs["ce"]
    groups = {"right": "test_by_correctness_correct", "wrong": "test_by_correctness_wrong"}
    panels = {
        "NLL": {"training set": (ce, "training_nll"), "test set": (ce, "test_nll")},
        "NLL, test set": {name: (ce, f"{key}_nll") for name, key in groups.items()},
        "ECE": {"training set": (ce, "training_ece"), "test set": (ce, "test_ece")},
        "entropy, test set": {name: (ce, f"{key}_entropy") for name, key in groups.items()},
    }
    return {"curves": curves.of_logs(panels)}


def _change(pairs: list[tuple[Columns, Columns]], of: Callable[[Columns], Estimate]) -> Value:
    return paired.over_seeds_and_rows([of(last) - of(first) for last, first in pairs])


def _training_change(log: list[dict[str, Any]]) -> float:
    later = [row for row in log if row["epoch"] >= first_drop(log)["epoch"]]
    return log[-1]["training_nll"] - least(later, "test_nll")["training_nll"]


def _falls(seeds: Seeds, name: str, group: str) -> dict[str, Value]:
    """Describe the fall of a group's entropy from one stage of the learning rate to the next."""
    falls = [_least_fall(run, group) for run in seeds]
    return {
        f"seeds whose entropy of {name} falls": comparisons.share([fall > 0 for fall in falls]),
        f"least fall of the entropy of {name}": paired.over_seeds(falls),
    }


def _least_fall(run: Trained, group: str) -> float:
    values = [
        run.log[place][f"test_by_correctness_{group}_entropy"]
        for place in [*(drops(run.log) or [0]), -1]
    ]
    return min(a - b for a, b in itertools.pairwise(values))


ENTRY = Entry(
    claims={
        "guo-nll-overfits-error-does-not": rules.above(
            "NLL(last) - NLL(least)", "error(least) - error(last)"
        ),
        "mukhoti-nll-rises-after-lr-drop": rules.every(
            rules.above("test NLL(last) / NLL(least)", margin=1 + LARGE),
            rules.below("train NLL(last) - train NLL(least)"),
        ),
        "mukhoti-nll-overfits-on-wrong": rules.every(
            rules.above("NLL of wrong, last - least"), rules.below("NLL of right, last - least")
        ),
        "mukhoti-ece-rises-with-nll-overfit": rules.above(
            "CE2(last) - CE2(least)", "rank correlation of test NLL and ECE after the drop"
        ),
        "mukhoti-entropy-falls-right-and-wrong": rules.every(
            *(
                rules.with_p(
                    rules.at_least(f"seeds whose entropy of {group} falls", 0.9, 0.0),
                    f"least fall of the entropy of {group}",
                )
                for group in ("right", "wrong")
            )
        ),
    },
    runs={"ce": CE},
    measures=(MEASURE,),
    statistic=statistic,
    figures=figures,
)
