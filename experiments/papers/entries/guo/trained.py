"""Guo et al.: networks of different sizes and recipes, by error and by calibration."""

import dataclasses

from experiments.papers.entries import compared
from experiments.papers.entries.trainings import CE, LENET, changed
from experiments.papers.entry import Training
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value

BASE = dataclasses.replace(CE, seeds=1)
WIDTH, DEPTH = "slope of CE2 on log width", "slope of CE2 on log depth"
WIDTHS = {"width4": 4, "width8": 8, "base": 16, "width32": 32}
DEPTHS = {"resnet8": 8, "resnet20": 20, "resnet32": 32}
# Without the condition on seeds.
HABITS = {
    "guo-batchnorm-hurts-calibration": rules.above("CE2(batch norm) - CE2(without)"),
    "guo-weight-decay-helps-calibration": rules.above(
        "CE2(decay 0) - CE2(5e-4)", "error(decay 0) - error(5e-4)"
    ),
}
CIFAR100 = {"lenet": 0.449, "resnet110": 0.306}  # published errors


def _slopes(runs: Runs, sizes: dict[str, int], of: str) -> dict[str, Value]:
    """Compute slopes on the logarithm of the size."""
    by_size = {size: runs[name][0] for name, size in sizes.items()}
    slope = f"slope of CE2 on log {of}"
    return {
        slope: comparisons.slope_of_ce2(by_size),
        f"{slope}, of networks that fit": comparisons.slope_of_ce2(comparisons.fitted(by_size)),
        f"slope of the error on log {of}": comparisons.slope(by_size, estimates.error),
        **{f"training error, {name}": comparisons.training_error(runs[name]) for name in runs},
        **comparisons.eces(runs),
    }


def _distance(network: str) -> str:
    return f"distance of error({network}) from the published one"


def _distances(runs: Runs) -> dict[str, Value]:
    return {
        _distance(name): Value(
            abs(compared.value(f"error({name})", runs).value - published),
            note=f"published {published}",
        )
        for name, published in CIFAR100.items()
    }


def _lenet_is_better() -> rules.Rule:
    calibration = rules.above("CE2(ResNet) - CE2(LeNet)")
    both = rules.every(rules.above("error(LeNet) - error(ResNet)"), calibration)

    def judge(values: rules.Values) -> rules.Judgement:
        outcome = both.judge(values)
        if outcome.state != rules.FAILS:
            return outcome
        alone = calibration.judge(values)
        if alone.state == rules.FAILS:
            return alone
        return rules.Judgement(rules.UNDECIDED, alone.p)

    words = f"{both.words}, but does not hold only if the last one lies below"
    return rules.Rule(words, judge, both.names)


ENTRIES = {
    "cifar100": compared.entry(
        {
            "guo-lenet-resnet-errors": rules.every(
                *(rules.within(_distance(name), 0.0, 0.02) for name in CIFAR100)
            )
        },
        {
            "lenet": Training(
                "cross_entropy",
                config="cifar100_resnet110",
                changes={"model.name": "lenet5"},
                alias="lenet5",
                keep="columns",
            ),
            "resnet110": Training("cross_entropy", config="cifar100_resnet110", keep="columns"),
        },
        "error(lenet)",
        "error(resnet110)",
        others=_distances,
    ),
    "depth": compared.entry(
        {"guo-depth-hurts-calibration": rules.above(DEPTH)},
        {
            "resnet8": BASE,
            "resnet20": changed(model__name="resnet20"),
            "resnet32": changed(model__name="resnet32"),
        },
        others=lambda runs: _slopes(runs, DEPTHS, "depth"),
    ),
    "habits": compared.entry(
        {claim: rules.given(compared.ENOUGH_SEEDS, rule) for claim, rule in HABITS.items()}
        | {"guo-width-hurts-calibration": rules.above(WIDTH)},
        {
            "base": BASE,
            "width4": changed(model__options__width=4),
            "width8": changed(model__options__width=8),
            "width32": changed(model__options__width=32),
            "no_norm": changed(model__options__norm="none"),
            "decay_0": changed(optimizer__weight_decay=0.0),
            "decay_1e-5": changed(optimizer__weight_decay=1e-5),
            "decay_1e-4": changed(optimizer__weight_decay=1e-4),
            "decay_1e-3": changed(optimizer__weight_decay=1e-3),
        },
        f"{WIDTH}, of networks that fit",
        "slope of the error on log width",
        "error(batch norm) - error(without)",
        labels={"batch norm": "base", "without": "no_norm", "5e-4": "base"},
        others=lambda runs: {**_slopes(runs, WIDTHS, "width"), "seeds": Value(len(runs["base"]))},
        originals=HABITS,
    ),
    "networks": compared.entry(
        {"guo-lenet-better-calibrated-than-resnet": _lenet_is_better()},
        {"lenet": LENET, "resnet": CE},
    ),
}
