"""Mukhoti et al., table 1: focal losses beside cross-entropy on the binary task of the SST."""

from experiments.papers import estimates, paired, rules
from experiments.papers.comparisons import Runs, Seeds, ce2
from experiments.papers.entry import Entry
from experiments.papers.rules import FAILS, HOLDS, Judgement, Rule, Values
from experiments.papers.text_trainings import polar_after, polar_before, polar_temperature, sst
from experiments.papers.values import Value

NAMES = {"ce": "CE", "fl3": "FL-3", "flsd": "FLSD-53"}
TEMPERATURES = ("T(FL-3)", "T(FLSD-53)")


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare calibration between the polar classes, before and after the temperature."""
    values = {}
    for key in ("fl3", "flsd"):
        name = NAMES[key]
        values[f"CE2({name}) - CE2(CE), before"] = ce2(runs[key], runs["ce"], polar_before)
        values[f"CE2(CE) - CE2({name}), after"] = ce2(runs["ce"], runs[key], polar_after)
    for key, name in NAMES.items():
        values[f"T({name})"] = paired.over_seeds([polar_temperature(run) for run in runs[key]])
        values[f"confidence({name}) - accuracy({name})"] = _gap(runs[key])
    return values


def _gap(seeds: Seeds) -> Value:
    gaps = [estimates.gap(polar_before(run)) for run in seeds]
    return paired.over_seeds_and_rows(gaps)


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
        "ce": sst("cross_entropy"),
        "fl3": sst("focal", gamma=3.0),
        "flsd": sst("flsd53"),
    },
    statistic=statistic,
    note="Word vectors of MiniLM in place of GloVe, threshold .2 of FLSD-53 in place of .19, the"
    " epoch of the best validation accuracy. The probabilities of the two polar classes are divided"
    " by their sum, which the released code does not do.",
)
