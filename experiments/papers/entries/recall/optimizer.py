"""SGD with a schedule and larger batches against Adam, on pixels (Tian et al. 2021)."""

from experiments.papers.entries.recall.rare_classes import (
    MEASURE,
    SCENES,
    mean_iou,
    mean_recall,
    of_run,
)
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.paired import over_seeds_and_rows
from experiments.papers.judge.values import Value

SGD = {
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 0.05,
    "optimizer.weight_decay": 5e-4,
    "schedule.name": "poly",
    "batch_size": 16,
}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare both recipes over as many images, seed by seed."""
    pairs = list(zip(runs["sgd"], runs["adam"], strict=True))
    return {
        f"{name}: SGD - Adam": over_seeds_and_rows(
            [of_run(a, of) - of_run(b, of) for a, b in pairs]
        )
        for name, of in (("mIoU", mean_iou), ("mean recall", mean_recall))
    }


ENTRY = Entry(
    claims={"recall-better-with-sgd-large-batch": rules.above("mIoU: SGD - Adam")},
    runs={
        "adam": Training("cross_entropy", config=SCENES, keep="none"),
        "sgd": Training("cross_entropy", config=SCENES, changes=SGD, alias="sgd", keep="none"),
    },
    measures=(MEASURE,),
    statistic=statistic,
)
