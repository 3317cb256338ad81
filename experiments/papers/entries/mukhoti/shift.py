"""Mukhoti et al., on Ovadia et al.: a temperature fitted without noise, on images with noise."""

from experiments.papers.entries.trainings import CE
from experiments.papers.entry import Entry
from experiments.papers.judge import estimates, paired, rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value

MEASURE = "shift"
MARGIN = 0.02**2  # two points of error, squared


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the calibration of noisy and of clean images after the same temperature."""
    clean = [estimates.squared_error(run.scaled) for run in runs["ce"]]
    values = {}
    for severity in range(1, 6):
        noisy = [run.columns(MEASURE, f"severity_{severity}") for run in runs["ce"]]
        mean = sum(estimates.ece(part) for part in noisy) / len(noisy)
        values[f"CE2(severity {severity}, T) - CE2(clean, T)"] = paired.difference_of_errors(
            [estimates.squared_error(part) for part in noisy], clean, note=f"ECE {mean:.4f}"
        )
    return values


ENTRY = Entry(
    claims={
        "mukhoti-ts-fails-under-shift": rules.above(
            "CE2(severity 5, T) - CE2(clean, T)", margin=MARGIN
        )
    },
    runs={"ce": CE},
    measures=(MEASURE,),
    statistic=statistic,
    note="The margin of two points is squared, because squared errors are compared.",
)
