"""Ghosh et al., table 1 on CIFAR-10: AdaFocal beside five losses."""

from experiments.papers.entries.trainings import ADAFOCAL, BRIER, CE, FLSD53, LABEL_SMOOTHING, MMCE
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs, ce2, difference
from experiments.papers.judge.values import Value

MARGIN = 0.005  # of the error
OTHERS = {"ce": "CE", "brier": "Brier", "mmce": "MMCE", "ls": "LS", "flsd": "FLSD-53"}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare errors in bins of equal mass, before the temperature, and error rates."""
    ce, flsd, adafocal = runs["ce"], runs["flsd"], runs["adafocal"]
    adaptive = estimates.adaptive_squared_error
    changes = {
        _name(other): ce2(runs[key], adafocal, binned=adaptive) for key, other in OTHERS.items()
    }
    return {
        **changes,
        "AdaCE2(CE) - AdaCE2(AdaFocal), after T": ce2(
            ce, adafocal, comparisons.after, binned=adaptive
        ),
        "error(AdaFocal) - error(CE)": difference(adafocal, ce, estimates.error),
        "error(AdaFocal) - error(FLSD-53)": difference(adafocal, flsd, estimates.error),
    }


def _name(other: str) -> str:
    return f"AdaCE2({other}) - AdaCE2(AdaFocal)"


ENTRY = Entry(
    claims={
        "adafocal-beats-ce-flsd-cifar10": rules.above(*map(_name, OTHERS.values())),
        "adafocal-error-not-worse": rules.below("error(AdaFocal) - error(CE)", margin=MARGIN),
    },
    originals={
        "adafocal-beats-ce-flsd-cifar10": rules.above(
            *(_name(OTHERS[name]) for name in ("ce", "flsd"))
        )
    },
    runs={
        "ce": CE,
        "brier": BRIER,
        "mmce": MMCE,
        "ls": LABEL_SMOOTHING,
        "flsd": FLSD53,
        "adafocal": ADAFOCAL,
    },
    statistic=statistic,
    note="ResNet-8 learns its 10,000 images by heart with every loss; the papers' networks have"
    " 50,000.",
)
