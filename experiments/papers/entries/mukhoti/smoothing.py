"""Mukhoti et al., section 1, on Müller et al.: label smoothing beside cross-entropy."""

from experiments.papers.entries.trainings import CE, LABEL_SMOOTHING
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, rules
from experiments.papers.judge.comparisons import Runs, ce2
from experiments.papers.judge.values import Value


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the calibration before and after the temperature."""
    return {
        "CE2(CE) - CE2(LS-0.05)": ce2(runs["ce"], runs["ls"]),
        "CE2(CE) - CE2(LS-0.05), after T": ce2(runs["ce"], runs["ls"], comparisons.after),
    }


ENTRY = Entry(
    claims={"mukhoti-ls-favourable": rules.above("CE2(CE) - CE2(LS-0.05)")},
    runs={"ce": CE, "ls": LABEL_SMOOTHING},
    statistic=statistic,
)
