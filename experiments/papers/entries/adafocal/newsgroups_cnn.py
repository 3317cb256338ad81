"""Ghosh et al., table 1: AdaFocal on 20 Newsgroups with the Global Pooling CNN."""

from experiments.papers.entries.text_trainings import newsgroups_cnn
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, paired, rules
from experiments.papers.judge.comparisons import Runs, ce2, difference
from experiments.papers.judge.values import Value

OTHERS = {"ce": "CE", "flsd": "FLSD-53", "ls": "LS-0.05"}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare errors in bins of equal mass with those of AdaFocal."""
    values = {}
    for key, name in OTHERS.items():
        for phase, part in (("before", comparisons.before), ("after", comparisons.after)):
            values[f"AdaCE2({name}) - AdaCE2(AdaFocal), {phase}"] = ce2(
                runs[key], runs["adafocal"], part, binned=estimates.adaptive_squared_error
            )
    values["error(AdaFocal) - error(CE)"] = difference(
        runs["adafocal"], runs["ce"], estimates.error
    )
    values["T(AdaFocal)"] = paired.over_seeds([run.temperature for run in runs["adafocal"]])
    return values


ENTRY = Entry(
    claims={
        "adafocal-newsgroups-cnn": rules.above(
            "AdaCE2(CE) - AdaCE2(AdaFocal), before", "AdaCE2(FLSD-53) - AdaCE2(AdaFocal), before"
        )
    },
    runs={
        "ce": newsgroups_cnn("cross_entropy"),
        "flsd": newsgroups_cnn("flsd53"),
        "ls": newsgroups_cnn("label_smoothing"),
        "adafocal": newsgroups_cnn("adafocal"),
    },
    statistic=statistic,
    note="The by-date version, 250 words a message and 22 epochs in place of 1,000 and 50, the word"
    " vectors of MiniLM in place of GloVe, also fixed, the epoch of the best validation accuracy.",
)
