"""Ghosh et al., table 1: AdaFocal on 20 Newsgroups with a pretrained BERT."""

import numpy as np

from experiments.papers.entries.text_trainings import newsgroups_bert
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs, ce2, difference
from experiments.papers.judge.values import Value

OTHERS = {"ce": "CE", "flsd": "FLSD-53"}
PHASES = {"before": comparisons.before, "after": comparisons.after}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare errors in bins of equal mass with those of AdaFocal."""
    values = {
        _name(name, phase): ce2(
            runs[key], runs["adafocal"], part, binned=estimates.adaptive_squared_error
        )
        for key, name in OTHERS.items()
        for phase, part in PHASES.items()
    }
    for key, name in {**OTHERS, "adafocal": "AdaFocal"}.items():
        values[f"T({name})"] = Value(
            float(np.mean([run.temperature for run in runs[key]])), seeds=len(runs[key])
        )
    values["error(AdaFocal) - error(CE)"] = difference(
        runs["adafocal"], runs["ce"], estimates.error
    )
    return values


def _name(other: str, phase: str) -> str:
    return f"AdaCE2({other}) - AdaCE2(AdaFocal), {phase}"


ENTRY = Entry(
    claims={
        "adafocal-newsgroups-bert": rules.above(
            *(_name(other, phase) for other in OTHERS.values() for phase in PHASES)
        )
    },
    originals={
        "adafocal-newsgroups-bert": rules.above(
            *(_name(other, "before") for other in OTHERS.values())
        )
    },
    runs={
        "ce": newsgroups_bert("cross_entropy"),
        "flsd": newsgroups_bert("flsd53"),
        "adafocal": newsgroups_bert("adafocal"),
    },
    statistic=statistic,
    note="MiniLM (6 layers of width 384) in place of BERT-base, 128 word pieces a message, two"
    " epochs, one seed: the interval is over test examples alone. After two epochs the networks are"
    " not confident enough (T is below 1), where the published one is too confident. A focal weight"
    " lowers confidence, so it cannot help here.",
)
