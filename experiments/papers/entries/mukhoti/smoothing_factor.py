"""Mukhoti et al., section 5, baselines: label smoothing of .05 beside .1."""

from experiments.papers.entries.trainings import LABEL_SMOOTHING, LABEL_SMOOTHING_01
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs, ce2
from experiments.papers.judge.values import Value


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the calibration of both smoothing factors before the temperature."""
    return {
        "CE2(LS-0.1) - CE2(LS-0.05)": ce2(runs["ls_01"], runs["ls_005"]),
        **{
            f"confidence - accuracy, {name}": comparisons.mean(
                runs[key], lambda run: estimates.gap(run.test)
            )
            for key, name in (("ls_005", "LS-0.05"), ("ls_01", "LS-0.1"))
        },
    }


ENTRY = Entry(
    claims={"mukhoti-ls-005-better-than-01": rules.above("CE2(LS-0.1) - CE2(LS-0.05)")},
    runs={"ls_005": LABEL_SMOOTHING, "ls_01": LABEL_SMOOTHING_01},
    statistic=statistic,
    note="These networks learn their 10,000 images by heart and are wrong on 36 % of the test"
    " images, the published ones on 5 %. So cross-entropy leaves them far too sure, and more"
    " smoothing helps.",
)
