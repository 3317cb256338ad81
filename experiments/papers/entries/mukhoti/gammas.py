"""Mukhoti et al., section 4: focal loss with gamma 1, 2, 3 beside cross-entropy, over training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.papers.entries.trainings import CE, FL1, FL2, FL3
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, paired, rules
from experiments.papers.judge.comparisons import Runs, difference, of_right, of_wrong
from experiments.papers.judge.estimates import Estimate
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value
from experiments.papers.store import curves
from experiments.papers.store.measures import first_drop
from experiments.papers.store.records import Trained

if TYPE_CHECKING:
    import matplotlib.figure

MEASURE = "turning_points"
LOSSES = {"ce": "cross-entropy", "fl1": "gamma 1", "fl2": "gamma 2", "fl3": "gamma 3"}
RISES = 1.05  # the ratio from which on a rise of the NLL counts, as for cross-entropy
EVERY = 10  # epochs between those that are checked


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the losses at the last epoch, and over training from the logs."""
    ce, fl3 = runs["ce"], runs["fl3"]
    norms = {name: [_column(run, "weight_norm") for run in runs[name]] for name in LOSSES}
    features = {
        name: [_checked(run.log, "test_feature_norm") for run in runs[name]] for name in LOSSES
    }
    of_norms, of_features = _gaps(norms), _gaps(features)
    return {
        "CE2(FL-1) - CE2(FL-2)": comparisons.ce2(runs["fl1"], runs["fl2"]),
        "CE2(FL-2) - CE2(FL-3)": comparisons.ce2(runs["fl2"], runs["fl3"]),
        "rise of NLL, CE - FL-3": difference(ce, fl3, _rise, _itself),
        "NLL(last)/NLL(least), FL-3": comparisons.mean(fl3, _ratio),
        "rise of NLL, CE - FL-1": difference(ce, runs["fl1"], _rise, _itself),
        "rise of NLL, CE - FL-2": difference(ce, runs["fl2"], _rise, _itself),
        "NLL of right, FL-3 - CE": difference(fl3, ce, of_right("nll")),
        "checked epochs with NLL of right FL-3 > CE": _larger(
            fl3, ce, "test_by_correctness_correct_nll"
        ),
        "rise of NLL of wrong, CE - FL-3": difference(ce, fl3, _rise_of_wrong, _itself),
        "entropy of wrong, FL-3 - CE": difference(fl3, ce, of_wrong("entropy")),
        "checked epochs with entropy of wrong FL-3 > CE": _larger(
            fl3, ce, "test_by_correctness_wrong_entropy"
        ),
        "seeds with the least early weight norm for CE": comparisons.share(
            [_early(norms, seed, ce[seed].log) for seed in range(len(ce))]
        ),
        "seeds with final weight norms CE > FL-1 > FL-2 > FL-3": comparisons.share(
            [gaps[-1] > 0 for gaps in of_norms]
        ),
        "seeds with the largest final weight norm for CE": _largest(norms),
        "least gap of the final weight norms": paired.over_seeds([g[-1] for g in of_norms]),
        "least gap of the feature norms in nine of ten checked epochs": paired.over_seeds(
            [np.quantile(gaps, 0.1) for gaps in of_features]
        ),
        "middle gradient norm, CE - FL-3": _gradients(ce, fl3, middle=True),
        "last gradient norm, CE - FL-3": _gradients(ce, fl3, middle=False),
        "checked epochs with feature norms CE > FL-1 > FL-2 > FL-3": Value(
            min(float(np.mean(gaps > 0)) for gaps in of_features), note="the least share of a seed"
        ),
        "seeds with the largest final feature norm for CE": _largest(features),
    }


def figures(runs: Runs) -> dict[str, "matplotlib.figure.Figure"]:
    """Draw figures 2 to 4 of Mukhoti et al.: the losses over training."""
    columns = {
        "NLL, test set": "test_nll",
        "ECE, test set": "test_ece",
        "NLL of wrong, test set": "test_by_correctness_wrong_nll",
        "entropy of wrong, test set": "test_by_correctness_wrong_entropy",
        "norm of the features": "test_feature_norm",
        "norm of the last weights": "weight_norm",
    }
    panels = {
        label: {name: (runs[key], column) for key, name in LOSSES.items()}
        for label, column in columns.items()
    }
    return {"curves": curves.of_logs(panels)}


def _itself(run: Trained) -> Trained:
    return run


def _rise(run: Trained) -> Estimate:
    """Compute the rise of the test NLL from its least value to the end."""
    return estimates.nll(run.logits) - _least_nll(run)


def _ratio(run: Trained) -> Estimate:
    """Divide the last test NLL by the least one."""
    return estimates.ratio(estimates.nll(run.logits), _least_nll(run))


def _least_nll(run: Trained) -> Estimate:
    return estimates.mean(run.columns(MEASURE, "least").nll)


def _rise_of_wrong(run: Trained) -> Estimate:
    """Compute the rise of the NLL of the wrong predictions from the first drop to the end."""
    of = of_wrong("nll")
    return of(run.logits.columns) - of(run.columns(MEASURE, "drop"))


def _column(run: Trained, key: str) -> np.ndarray:
    return np.array([row[key] for row in run.log], float)


def _checked(log: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    """Return a column at every tenth epoch and at the last one."""
    return np.array([row[key] for row in log if row["epoch"] % EVERY == 0 or row is log[-1]], float)


def _larger(first: Sequence[Trained], second: Sequence[Trained], key: str) -> Value:
    pairs = [
        _checked(a.log, key) > _checked(b.log, key) for a, b in zip(first, second, strict=True)
    ]
    return comparisons.share(np.concatenate(pairs))


def _gradients(first: Sequence[Trained], second: Sequence[Trained], *, middle: bool) -> Value:
    def value(run: Trained) -> float:
        row = first_drop(run.log) if middle else run.log[-1]
        return float(row["training_gradient_median"])

    return paired.over_seeds(
        [value(a) - value(b) for a, b in zip(first, second, strict=True)],
        note="medians over the training set, from histograms; middle: at the first drop",
    )


def _early(norms: dict[str, list[np.ndarray]], seed: int, log: list[dict[str, Any]]) -> bool:
    """Check that the norm of CE is least, on average over the first quarter of the first stage."""
    epochs = max(1, round(first_drop(log)["epoch"] / 4))
    means = [norms[name][seed][:epochs].mean() for name in LOSSES]
    return means[0] == min(means)


def _gaps(columns: dict[str, list[np.ndarray]]) -> list[np.ndarray]:
    """Return, seed by seed, the least of CE - FL-1, FL-1 - FL-2 and FL-2 - FL-3 at every place."""
    seeds = zip(*columns.values(), strict=True)
    return [np.min(-np.diff(np.stack(of_losses), axis=0), axis=0) for of_losses in seeds]


def _largest(columns: dict[str, list[np.ndarray]]) -> Value:
    ends = [
        [column[-1] for column in of_losses] for of_losses in zip(*columns.values(), strict=True)
    ]
    return comparisons.share([ce == max(ce, *others) for ce, *others in ends])


def _order_rule(share: str, largest: str, *others: str) -> Rule:
    """Holds at the share and the others; does not hold if CE is not largest at the end."""
    names = (share, *others, largest)

    def judge(values: Values) -> Judgement:
        if values[largest].value < 1:
            return Judgement(FAILS)
        kept = values[share].value >= 0.9 and all(values[name].value == 1 for name in others)
        return Judgement(HOLDS if kept else UNDECIDED)

    words = f"holds if {share} are at least 90 %" + "".join(f" and {name} all" for name in others)
    return Rule(
        words + "; does not hold if CE is not largest at the end; undecided otherwise", judge, names
    )


ENTRY = Entry(
    claims={
        "mukhoti-gamma-order-3-2-1-own": rules.above(
            "CE2(FL-1) - CE2(FL-2)", "CE2(FL-2) - CE2(FL-3)"
        ),
        "mukhoti-focal-test-nll-stays-low": rules.agreeing(
            rules.above("rise of NLL, CE - FL-3"),
            rules.below("NLL(last)/NLL(least), FL-3", margin=RISES),
        ),
        "mukhoti-focal-nll-of-right-higher": rules.every(
            rules.above("NLL of right, FL-3 - CE"),
            rules.at_least("checked epochs with NLL of right FL-3 > CE", 0.9),
        ),
        "mukhoti-focal-nll-of-wrong-rises-less": rules.above("rise of NLL of wrong, CE - FL-3"),
        "mukhoti-focal-entropy-of-wrong-higher": rules.every(
            rules.above("entropy of wrong, FL-3 - CE"),
            rules.at_least("checked epochs with entropy of wrong FL-3 > CE", 0.9),
        ),
        "mukhoti-weight-norm-reversal": rules.with_p(
            _order_rule(
                "seeds with final weight norms CE > FL-1 > FL-2 > FL-3",
                "seeds with the largest final weight norm for CE",
                "seeds with the least early weight norm for CE",
            ),
            "least gap of the final weight norms",
        ),
        "mukhoti-gradient-norms-focal-lower": rules.above(
            "middle gradient norm, CE - FL-3", "last gradient norm, CE - FL-3"
        ),
        "mukhoti-feature-norm-order": rules.with_p(
            _order_rule(
                "checked epochs with feature norms CE > FL-1 > FL-2 > FL-3",
                "seeds with the largest final feature norm for CE",
            ),
            "least gap of the feature norms in nine of ten checked epochs",
        ),
    },
    originals={"mukhoti-focal-test-nll-stays-low": rules.above("rise of NLL, CE - FL-3")},
    runs={"ce": CE, "fl1": FL1, "fl2": FL2, "fl3": FL3},
    measures=(MEASURE,),
    statistic=statistic,
    figures=figures,
)
