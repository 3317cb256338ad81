"""Calibration errors, temperatures and errors recounted from the tables of Mukhoti et al. 2020."""

from experiments.papers.entry import Entry
from experiments.papers.judge.counting import (
    PHASES,
    all_counts,
    among,
    below,
    brief,
    columns,
    count,
    each_count,
    inside,
    temperatures,
    total_count,
    without,
)
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value

BASELINES = ("Cross-Entropy", "Brier Loss", "MMCE", "LS-0.05")
FOCAL = ("FL-3", "FLSD-53")


def beats_cross_entropy() -> dict[str, Value]:
    """Count the rows of Table 1 where a focal loss has a lower ECE than cross-entropy."""
    counts = {}
    for phase, when in PHASES.items():
        table = columns("mukhoti", "T1", phase)
        for method in FOCAL:
            counts[f"{method} {when}"] = below(table[method], among(table, BASELINES[:1]))
    return counts


def beats_baselines(name: str, *phases: str) -> dict[str, Value]:
    """Count the rows where focal losses are below all four baselines."""
    counts = {}
    for phase in phases:
        when, table = PHASES[phase], columns("mukhoti", name, phase)
        flsd, three = table["FLSD-53"], table["FL-3"]
        counts[f"FLSD-53 {when}"] = below(flsd, among(table, BASELINES))
        counts[f"FL-3 {when}"] = brief(below(three, among(table, BASELINES)))
        lowest = below(flsd, without(table, "FLSD-53"))
        counts[f"FLSD-53 lowest of six {when}"] = brief(lowest)
        attained = {
            row: min(flsd[row], three[row]) <= min(table[method][row] for method in BASELINES)
            for row in flsd
        }
        counts[f"a focal loss attains the minimum, ties counted, {when}"] = count(attained)
    return counts


def keeps_accuracy() -> dict[str, Value]:
    """Count the rows of Table 2 where a focal loss has at most 0.5 points more error."""
    table = columns("mukhoti", "T2", "pre")
    base = table["Cross-Entropy"]
    counts = {}
    for method in FOCAL:
        change = {row: value - base[row] for row, value in table[method].items()}
        # The tolerance absorbs the rounding of the difference of two printed decimals.
        flags = {row: value <= 0.5 + 1e-9 for row, value in change.items()}
        signed = {row: f"{value:+.2f}" for row, value in change.items()}
        counts[f"{method} at most 0.5 points worse"] = count(flags, signed.__getitem__)
        counts[f"{method} better"] = brief(below(table[method], {"Cross-Entropy": base}))
        counts[f"{method}, least change"] = Value(min(change.values()))
        counts[f"{method}, largest change"] = Value(max(change.values()))
    return counts


def baselines_against_cross_entropy() -> dict[str, Value]:
    """Count the rows where MMCE, and Brier, are below cross-entropy in the same phase."""
    counts = {}
    for phase, when in PHASES.items():
        table = columns("mukhoti", "T1", phase)
        for method in ("MMCE", "Brier Loss"):
            counts[f"{method} {when}"] = below(table[method], among(table, BASELINES[:1]))
    return counts


def temperatures_inside(*methods: str, low: float, high: float) -> dict[str, Value]:
    """Count the temperatures of Table 1 in an interval."""
    fitted = temperatures("mukhoti", "T1")
    return {f"T of {method}": inside(fitted[method], low, high) for method in methods}


def near_one_but_worse() -> dict[str, Value]:
    """Count temperatures near 1 of Brier and label smoothing, and where FLSD-53 is below them."""
    methods = ("Brier Loss", "LS-0.05")
    counts = temperatures_inside(*methods, low=0.9, high=1.1)
    for phase, when in PHASES.items():
        table = columns("mukhoti", "T1", phase)
        for method in methods:
            name = f"FLSD-53 below {method} {when}"
            counts[name] = below(table["FLSD-53"], {method: table[method]})
    return counts


def over_data_sets() -> dict[str, Value]:
    """Compare FLSD-53 with cross-entropy in Mukhoti's Table 1 and in AdaFocal's."""
    ours = columns("mukhoti", "T1", "pre")
    theirs = columns("adafocal", "Table 1", "pre")
    excess: dict[str, list[float]] = {}
    for row, value in theirs["FLSD-53"].items():
        excess.setdefault(row.split(",")[0], []).append(value - theirs["CE"][row])
    least = {name: min(values) for name, values in excess.items()}
    worst = max(least, key=lambda name: least[name])
    return {
        "Mukhoti's rows": below(ours["FLSD-53"], {"CE": ours["Cross-Entropy"]}),
        "AdaFocal's rows": below(theirs["FLSD-53"], {"CE": theirs["CE"]}),
        "worst data set": Value(
            least[worst], rows=len(excess[worst]), note=f"{worst}: points above CE, at least"
        ),
    }


def _consistent(values: Values) -> Judgement:
    counts = (values["Mukhoti's rows"], values["AdaFocal's rows"])
    if all(count.value == count.rows for count in counts):
        return Judgement(HOLDS)
    return Judgement(FAILS if values["worst data set"].value >= 5 else UNDECIDED)


CONSISTENT = Rule(
    "holds if FLSD-53 is below CE in every row of both tables; does not hold if it is at least 5"
    " points above CE on every network of one data set; undecided otherwise",
    _consistent,
    ("Mukhoti's rows", "AdaFocal's rows", "worst data set"),
)


def _focal(holds: float) -> Rule:
    names = (f"{method} {when}" for when in PHASES.values() for method in FOCAL)
    return each_count(*names, holds=holds, fails=5)


BOTH = ("FLSD-53 before scaling", "FLSD-53 after scaling")

CLAIMS = {
    "mukhoti-focal-beats-ce-count": (beats_cross_entropy, _focal(11)),
    "mukhoti-flsd-outperforms-all-pre": (
        lambda: beats_baselines("T1", "pre"),
        each_count(BOTH[0], holds=6, fails=5),
    ),
    "mukhoti-flsd-outperforms-all-post": (
        lambda: beats_baselines("T1", "post"),
        each_count(BOTH[1], holds=6, fails=5),
    ),
    "mukhoti-adaece-flsd-best": (
        lambda: beats_baselines("F.1", "pre", "post"),
        each_count(*BOTH, holds=6, fails=5),
    ),
    "mukhoti-classwise-ece-flsd-best": (
        lambda: beats_baselines("F.2", "pre", "post"),
        all_counts(*BOTH, holds=6, fails=5),
    ),
    "mukhoti-accuracy-preserved-table": (
        keeps_accuracy,
        each_count("FLSD-53 at most 0.5 points worse", holds=9, fails=5),
    ),
    "mukhoti-mmce-ts-beats-ce-ts": (
        baselines_against_cross_entropy,
        each_count("MMCE after scaling", holds=6, fails=5),
    ),
    "mukhoti-flsd-temperature-near-one": (
        lambda: temperatures_inside("FLSD-53", "FL-3", low=0.9, high=1.1),
        each_count("T of FLSD-53", holds=6, fails=5),
    ),
    "mukhoti-ce-mmce-temperature-high": (
        lambda: temperatures_inside("Cross-Entropy", "MMCE", low=2.0, high=2.8),
        total_count(
            "the number of temperatures in [2.0, 2.8]", ("T of Cross-Entropy", "T of MMCE"), 12, 11
        ),
    ),
    "mukhoti-brier-ls-temperature-near-one": (
        near_one_but_worse,
        each_count(*near_one_but_worse(), holds=6, fails=5),
    ),
    "mukhoti-flsd-consistent-across-sets": (over_data_sets, CONSISTENT),
}
ENTRY = Entry(
    claims={claim: rule for claim, (_, rule) in CLAIMS.items()},
    statistic={claim: compute for claim, (compute, _) in CLAIMS.items()},
)
