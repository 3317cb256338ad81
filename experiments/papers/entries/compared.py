"""Entries whose values compare trained networks: the name of a value defines it.

    CE2(CE) - CE2(FLSD-53)              debiased squared errors, in bins of equal width
    AdaCE2(CE) - AdaCE2(FLSD-53)        the same, in bins of equal mass
    CE2(CE) - CE2(FLSD-53), after       both after the papers' temperature
    CE2(CE+TS) - CE2(BSCE-GRA)          CE alone after the papers' temperature
    CE2(2) - CE2(3), minus the margin   minus the change if the root of CE2(3) grew by half a point
    error(FLSD-53) - error(CE)          another of STATISTICS, averaged over seeds
    error(CE), or: error, CE            the same of one training
    AUROC(CE) - AUROC(FLSD-53)          of the entropy: the test set and the one of a measure
    T(CE), T(CE) on the ECE grid        the papers' temperature
    T(CE) by NLL                        the temperature of the least validation NLL

The labels in parentheses stand for trainings of the entry, by LABELS, or in small letters.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.papers.entry import Entry, Training
from experiments.papers.judge import comparisons, estimates, paired, rules
from experiments.papers.judge.comparisons import Runs, Seeds
from experiments.papers.judge.estimates import Columns, Estimate, Predictions
from experiments.papers.judge.rules import Rule
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

LABELS = {
    **{"FL-1": "fl1", "FL-2": "fl2", "FL-3": "fl3", "FLSD-53": "flsd"},
    **dict.fromkeys(("LS", "LS-0.05"), "ls"),
}
ENOUGH_SEEDS = rules.at_least("seeds", 3)  # where the test of a claim asks for them
BINNED = {"CE2": estimates.squared_error, "AdaCE2": estimates.adaptive_squared_error}
STATISTICS: dict[str, Callable[[Any], Estimate]] = {
    "error": estimates.error,
    "confidence": lambda part: estimates.mean(part.confidence),
    "confidence - accuracy": estimates.gap,
    "confidence on wrong": comparisons.of_wrong("confidence"),
    "S99": lambda part: estimates.mean(part.confidence >= 0.99),
    "top-3 accuracy": lambda part: estimates.top_k(part, 3),
    "p_y of wrong": lambda part: estimates.mean_where(np.exp(-part.nll), ~part.right),
}
PARTS: dict[str, Callable[[Trained], Any]] = {
    "before": comparisons.before,
    **dict.fromkeys(("after", "after T"), comparisons.after),
}

MARGIN, SCALED = ", minus the margin", "+TS"
_PAIR = re.compile(r"([^()]+)\(([^()]+)\) - [^()]*\(([^()]+)\)(?:, (.+))?")
_TEMPERATURE = re.compile(r"T\(([^()]+)\)(?: on the ECE grid)?( by NLL)?")
_SINGLE = re.compile(r"([^()]+)(?:\(([^()]+)\)(?:, ([^()]+))?|, ([^()]+))")


def _auroc(parts: Sequence[Predictions | Columns]) -> Estimate:
    """Compute how well the entropy separates the two parts of `against`."""
    first, second = parts
    return estimates.auroc(first.entropy, second.entropy)


def entry(
    claims: Mapping[str, Rule],
    runs: Mapping[str, Training],
    *beside: str,
    labels: Mapping[str, str] | None = None,
    parts: Mapping[str, Callable[[Trained], Any]] | None = None,
    others: Callable[[Runs], Mapping[str, Value]] = lambda runs: {},
    originals: Mapping[str, Rule] | None = None,
    **more: Any,
) -> Entry:
    """Build an entry with the values that its rules name.

    Args:
      claims: as those of `Entry`.
      runs: as those of `Entry`.
      *beside: names of further values.
      labels: keys of `runs` by label, beside LABELS.
      parts: the part of a run that a phase stands for, beside PARTS.
      others: returns values that their names do not define; those without a rule stand last.
      originals: as those of `Entry`.
      **more: other attributes of `Entry`.
    """
    originals = originals or {}
    judged, first = ([n for rule in of.values() for n in rule.names] for of in (claims, originals))
    names = tuple(dict.fromkeys((*judged, *beside, *first)))
    all_labels, all_parts = LABELS | dict(labels or {}), PARTS | dict(parts or {})

    def statistic(trained: Runs) -> dict[str, Value]:
        given = others(trained)
        named = {
            name: given[name] if name in given else value(name, trained, all_labels, all_parts)
            for name in names
        }
        return named | dict(given)

    return Entry(claims=claims, runs=runs, statistic=statistic, originals=originals, **more)


def against(measure: str) -> dict[str, Callable[[Trained], Any]]:
    """Return the parts of an AUROC: the test set, and the one that a measure predicted."""
    return {
        "before": lambda run: (run.logits, run.columns(measure, "before")),
        "after": lambda run: (run.scaled, run.columns(measure, "after")),
    }


def value(
    name: str,
    runs: Runs,
    labels: Mapping[str, str] = LABELS,
    parts: Mapping[str, Callable[[Trained], Any]] = PARTS,
) -> Value:
    """Compute the value that a name defines.

    Args:
      name: the name.
      runs: the trained networks, by name.
      labels: the key of a training in `runs` by label.
      parts: the part of a run by phase.
    """

    def of(label: str, phase: str | None = None) -> tuple[Seeds, Callable[[Trained], Any]]:
        scaled, label = label.endswith(SCALED), label.removesuffix(SCALED)
        key = labels.get(label, label.lower().replace(" ", "_").replace("-", "_"))
        phase = "after" if scaled else phase or "before"
        if key not in runs or phase not in parts:
            raise LookupError(
                f"{name!r} needs the run {key!r} and the phase {phase!r}; there are"
                f" {', '.join(runs)}, and {', '.join(parts)}."
            )
        return runs[key], parts[phase]

    if pair := _PAIR.fullmatch(name.removesuffix(MARGIN)):
        statistic, *both, phase = pair.groups()
        (first, part), (second, other_part) = (of(label, phase) for label in both)
        if statistic in BINNED:
            change = comparisons.ce2(first, second, part, other_part, BINNED[statistic])
            is_beyond = name.endswith(MARGIN)
            return comparisons.beyond(change, second, other_part) if is_beyond else change
        if statistic in STATISTICS and part is other_part:
            return comparisons.difference(first, second, STATISTICS[statistic], part)
        if statistic == "AUROC":
            pairs = zip(first, second, strict=True)
            return paired.over_seeds_and_rows(
                [_auroc(part(a)) - _auroc(other_part(b)) for a, b in pairs]
            )
    if single := _TEMPERATURE.fullmatch(name):
        label, by_nll = single.groups()
        fitted = [run.temperature_by_nll if by_nll else run.temperature for run in of(label)[0]]
        return paired.over_seeds(fitted) if len(fitted) > 1 else Value(fitted[0], seeds=1)
    if single := _SINGLE.fullmatch(name):
        statistic, label, phase, last = single.groups()
        if measure := (STATISTICS | {"AUROC": _auroc}).get(statistic):
            seeds, part = of(last or label, phase)
            return comparisons.mean(seeds, lambda run: measure(part(run)))
    raise LookupError(
        f"{name!r} defines no value: see entries/compared.py, or compute it in `others`."
    )
