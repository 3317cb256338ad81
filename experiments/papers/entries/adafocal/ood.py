"""Ghosh et al., figure 6: AdaFocal separates noisy images, beside the other losses."""

from experiments.papers.entries.mukhoti.noise import auroc_difference
from experiments.papers.entries.trainings import ADAFOCAL, CE, FLSD53, MMCE, undiagnosed
from experiments.papers.entry import Entry
from experiments.papers.judge import rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the AUROC of the entropy, before and after the temperature."""
    names = {"ce": "CE", "flsd": "FLSD-53", "mmce": "MMCE"}
    return {
        f"AUROC(AdaFocal) - AUROC({name}), {phase}": auroc_difference(
            runs["adafocal"], runs[key], phase
        )
        for phase in ("before", "after")
        for key, name in names.items()
    }


ENTRY = Entry(
    claims={
        "adafocal-ood-roc": rules.above(
            "AUROC(AdaFocal) - AUROC(CE), before", "AUROC(AdaFocal) - AUROC(FLSD-53), before"
        )
    },
    runs={
        name: undiagnosed(training)
        for name, training in (
            ("adafocal", ADAFOCAL),
            ("ce", CE),
            ("flsd", FLSD53),
            ("mmce", MMCE),
        )
    },
    measures=("noise",),
    statistic=statistic,
    note="Test images against the same with Gaussian noise of standard deviation .1. The half with"
    " SVHN is not run: the data set is absent.",
)
