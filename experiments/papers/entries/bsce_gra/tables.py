"""The tables of the BSCE-GRA notes (Lin et al. 2025) recounted."""

from experiments.papers.entries.recounted import Below, columns, statistic
from experiments.papers.entry import computed
from experiments.papers.judge.counting import count, each_count, total_count
from experiments.papers.judge.rules import decided
from experiments.papers.judge.values import Value

KINDS = ("FL", "DFL", "BS")
DUAL = {"DFL-Loss": "FL-Loss", "DFL-GRA": "FL-GRA"}
# Cells of the ablation that repeat a column of the main table.
REPEATED = {"FL-Loss": "FL+TS", "DFL-Loss": "DFL+TS", "BS-Loss": "BSCE", "BS-GRA": "BSCE-GRA"}


def phases_of_ablation() -> dict[str, Value]:
    """Count the cells of the ablation that repeat a column of the main table."""
    counts = {}
    for cell, name in REPEATED.items():
        (ours,) = columns("bsce-gra", f"ablation:{cell}").values()
        (main,) = columns("bsce-gra", f"main:{name}", "pre").values()
        counts[f"{cell} equals {name}"] = count({row: v == main[row] for row, v in ours.items()})
    return counts


def _ablation(name: str, column: str, *others: str) -> Below:
    return Below(name, f"ablation:{column}", tuple(f"ablation:{other}" for other in others))


def _below(column: str, other: str) -> Below:
    return _ablation(f"{column} below {other}", column, other)


SAME_PHASE = decided(
    "does not hold if every focal cell equals the main table's scaled value and every Brier cell"
    " its unscaled one; holds otherwise",
    lambda values: not all(v.value == v.rows for v in values.values()),
)
ENTRY = computed(
    {
        "bsce-gra-best-ece-table": (
            statistic(
                "bsce-gra",
                Below("BSCE-GRA lowest", "main:BSCE-GRA", ("main:*", "main:*+TS")),
                phases=("pre",),
            ),
            each_count("BSCE-GRA lowest", holds=6, fails=3),
        ),
        "bsce-beats-scaled-focal-table": (
            statistic(
                "bsce-gra",
                *(
                    Below(f"below {name}", "main:BSCE", (f"main:{name}",))
                    for name in columns("bsce-gra", "main:*+TS")
                ),
                phases=("pre",),
            ),
            each_count("below FL+TS", "below DFL+TS", holds=6, fails=3),
        ),
        "bsce-gra-gradient-beats-loss-table": (
            lambda: (
                statistic(
                    "bsce-gra",
                    *(_below(f"{kind}-GRA", f"{kind}-Loss") for kind in KINDS),
                    phases=("",),
                )()
                | statistic(
                    "bsce-gra",
                    Below("BSCE-GRA below BSCE, main table", "main:BSCE-GRA", ("main:BSCE",)),
                    phases=("pre",),
                )()
            ),
            total_count(
                "the number of pairs of the ablation",
                (f"{kind}-GRA below {kind}-Loss" for kind in KINDS),
                6,
                5,
            ),
        ),
        "bsce-gra-brier-beats-focal-weights-table": (
            statistic(
                "bsce-gra",
                *(
                    _ablation(f"BS-{kind} lowest", f"BS-{kind}", f"FL-{kind}", f"DFL-{kind}")
                    for kind in ("Loss", "GRA")
                ),
                phases=("",),
            ),
            total_count("the number of cells", ("BS-Loss lowest", "BS-GRA lowest"), 4, 3),
        ),
        "bsce-gra-ablation-same-phase": (phases_of_ablation, SAME_PHASE),
        "bsce-gra-dual-focal-beats-focal": (
            statistic(
                "bsce-gra",
                *(_below(dual, focal) for dual, focal in DUAL.items()),
                Below("DFL+TS below FL+TS", "main:DFL+TS", ("main:FL+TS",)),
                phases=("",),
            ),
            total_count(
                "the number of cells",
                (f"{dual} below {focal}" for dual, focal in (*DUAL.items(), ("DFL+TS", "FL+TS"))),
                10,
                5,
            ),
        ),
    }
)
