"""Guo et al., figure 2: the errors of LeNet and of ResNet-110 on CIFAR-100."""

from experiments.papers.entry import Entry, Training
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value

PUBLISHED = {"lenet": 0.449, "resnet110": 0.306}
DISTANCE = 0.02
CONFIG = "cifar100_resnet110"


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare both errors with the published ones."""
    values = {}
    for name, published in PUBLISHED.items():
        error = comparisons.mean(runs[name], lambda run: estimates.error(run.test))
        values[f"error({name})"] = error
        values[_name(name)] = Value(abs(error.value - published), note=f"published {published}")
    return values


def _name(network: str) -> str:
    return f"distance of error({network}) from the published one"


ENTRY = Entry(
    claims={
        "guo-lenet-resnet-errors": rules.every(
            *(rules.within(_name(name), 0.0, DISTANCE) for name in PUBLISHED)
        )
    },
    runs={
        "lenet": Training(
            "cross_entropy", {}, CONFIG, {"model.name": "lenet5"}, "lenet5", keep="columns"
        ),
        "resnet110": Training("cross_entropy", config=CONFIG, keep="columns"),
    },
    statistic=statistic,
    note="Both networks have the recipe of ResNet-110; the recipe of the source for LeNet is not in"
    " our copy.",
)
