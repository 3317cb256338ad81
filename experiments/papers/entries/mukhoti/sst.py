"""Mukhoti et al., table 1: focal losses beside cross-entropy on the binary task of the SST."""

from collections.abc import Callable

from experiments.papers.entries import text_trainings as texts
from experiments.papers.entry import Entry
from experiments.papers.judge import estimates, paired, rules
from experiments.papers.judge.comparisons import Runs, Seeds, ce2
from experiments.papers.judge.estimates import Columns, Predictions
from experiments.papers.judge.rules import FAILS, HOLDS, Judgement, Rule, Values
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

NAMES = {"ce": "CE", "fl3": "FL-3", "flsd": "FLSD-53"}
TEMPERATURES = ("T(FL-3)", "T(FLSD-53)")
# Of the papers' reading, and of probabilities that are divided by their sum.
Read = Callable[[Trained], Predictions | Columns]
READINGS: dict[str, tuple[Read, Read, Callable[[Trained], float]]] = {
    "": (texts.released_before, texts.released_after, texts.released_temperature),
    ", divided": (texts.polar_before, texts.polar_after, texts.polar_temperature),
}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare calibration between the polar classes, before and after the temperature."""
    values = {}
    for reading, (before, after, temperature) in READINGS.items():
        for key in ("fl3", "flsd"):
            name = NAMES[key]
            values[f"CE2({name}) - CE2(CE), before{reading}"] = ce2(runs[key], runs["ce"], before)
            values[f"CE2(CE) - CE2({name}), after{reading}"] = ce2(runs["ce"], runs[key], after)
        for key, name in NAMES.items():
            values[f"T({name}){reading}"] = paired.over_seeds([temperature(r) for r in runs[key]])
            values[f"confidence({name}) - accuracy({name}){reading}"] = _gap(runs[key], before)
    return values


def _gap(seeds: Seeds, part: Read) -> Value:
    return paired.over_seeds_and_rows([estimates.gap(part(run)) for run in seeds])


def _all_below_1(values: Values) -> Judgement:
    return Judgement(HOLDS if all(values[name].value < 1 for name in TEMPERATURES) else FAILS)


ENTRY = Entry(
    claims={
        "mukhoti-sst-focal": rules.every(
            Rule(f"holds if {' and '.join(TEMPERATURES)} are below 1", _all_below_1, TEMPERATURES),
            rules.above("CE2(FL-3) - CE2(CE), before", "CE2(CE) - CE2(FL-3), after"),
        )
    },
    runs={
        "ce": texts.sst("cross_entropy"),
        "fl3": texts.sst("focal", gamma=3.0),
        "flsd": texts.sst("flsd53"),
    },
    statistic=statistic,
    note="Word vectors of MiniLM in place of GloVe, threshold .2 of FLSD-53 in place of .19, the"
    " epoch of the best validation accuracy. As in the released code, the probability of neutral"
    " goes to no class, which lowers all confidences; 'divided' are the values of probabilities"
    " that are divided by their sum.",
)
