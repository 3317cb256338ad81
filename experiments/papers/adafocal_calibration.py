"""Ghosh et al., table 1 on CIFAR-10: AdaFocal beside cross-entropy and FLSD-53."""

from experiments.papers import comparisons, estimates, rules
from experiments.papers.comparisons import Runs, ce2, difference
from experiments.papers.entry import Entry
from experiments.papers.trainings import ADAFOCAL, CE, FLSD53
from experiments.papers.values import Value

MARGIN = 0.005  # of the error


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare errors in bins of equal mass, before the temperature, and error rates."""
    ce, flsd, adafocal = runs["ce"], runs["flsd"], runs["adafocal"]
    adaptive = estimates.adaptive_squared_error
    return {
        "AdaCE2(CE) - AdaCE2(AdaFocal)": ce2(ce, adafocal, binned=adaptive),
        "AdaCE2(FLSD-53) - AdaCE2(AdaFocal)": ce2(flsd, adafocal, binned=adaptive),
        "AdaCE2(CE) - AdaCE2(AdaFocal), after T": ce2(
            ce, adafocal, comparisons.after, binned=adaptive
        ),
        "error(AdaFocal) - error(CE)": difference(adafocal, ce, estimates.error),
        "error(AdaFocal) - error(FLSD-53)": difference(adafocal, flsd, estimates.error),
    }


ENTRY = Entry(
    claims={
        "adafocal-beats-ce-flsd-cifar10": rules.above(
            "AdaCE2(CE) - AdaCE2(AdaFocal)", "AdaCE2(FLSD-53) - AdaCE2(AdaFocal)"
        ),
        "adafocal-error-not-worse": rules.below("error(AdaFocal) - error(CE)", margin=MARGIN),
    },
    runs={"ce": CE, "flsd": FLSD53, "adafocal": ADAFOCAL},
    statistic=statistic,
)
