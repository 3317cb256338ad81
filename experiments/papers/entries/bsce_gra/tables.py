"""The tables of the BSCE-GRA notes (Lin et al. 2025) recounted."""

from experiments.papers.entry import Entry
from experiments.papers.judge.counting import (
    Column,
    among,
    below,
    columns,
    count,
    each_count,
    total_count,
    without,
)
from experiments.papers.judge.rules import FAILS, HOLDS, Judgement, Rule, Values
from experiments.papers.judge.values import Value

KINDS = ("FL", "DFL", "BS")


def _main() -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    before, after = (columns("bsce-gra", "main", phase) for phase in ("pre", "post"))
    return before, {f"{name}+TS": column for name, column in after.items()}


def lowest() -> dict[str, Value]:
    """Count the rows where BSCE-GRA is the lowest of all columns, scaled ones included."""
    before, after = _main()
    others: dict[str, Column] = {**without(before, "BSCE-GRA"), **after}
    return {"BSCE-GRA lowest": below(before["BSCE-GRA"], others)}


def loss_weighting_against_scaled() -> dict[str, Value]:
    """Count the rows where BSCE is below each scaled column."""
    before, after = _main()
    return {f"below {name}": below(before["BSCE"], {name: after[name]}) for name in after}


def gradient_against_loss() -> dict[str, Value]:
    """Count the pairs where gradient weighting is below loss weighting."""
    table, (before, _) = columns("bsce-gra", "ablation"), _main()
    counts = {
        f"{kind}-GRA below {kind}-Loss": below(
            table[f"{kind}-GRA"], among(table, (f"{kind}-Loss",))
        )
        for kind in KINDS
    }
    main = below(before["BSCE-GRA"], among(before, ("BSCE",)))
    return {**counts, "BSCE-GRA below BSCE, main table": main}


def brier_against_focal_weights() -> dict[str, Value]:
    """Count the cells where the Brier weight is below the focal and dual focal weights."""
    table = columns("bsce-gra", "ablation")
    return {
        f"BS-{kind} lowest": below(table[f"BS-{kind}"], among(table, (f"FL-{kind}", f"DFL-{kind}")))
        for kind in ("Loss", "GRA")
    }


def phases_of_ablation() -> dict[str, Value]:
    """Count the cells of the ablation that repeat a column of the main table."""
    table, (before, after) = columns("bsce-gra", "ablation"), _main()
    pairs = {
        "FL-Loss": "FL+TS",
        "DFL-Loss": "DFL+TS",
        "BS-Loss": "BSCE",
        "BS-GRA": "BSCE-GRA",
    }
    main = before | after
    return {
        f"{cell} equals {name}": count(
            {row: value == main[name][row] for row, value in table[cell].items()}
        )
        for cell, name in pairs.items()
    }


def _same_phase(values: Values) -> Judgement:
    return Judgement(FAILS if all(v.value == v.rows for v in values.values()) else HOLDS)


SAME_PHASE = Rule(
    "does not hold if every focal cell equals the main table's scaled value and every Brier cell"
    " its unscaled one; holds otherwise",
    _same_phase,
)


def dual_against_focal() -> dict[str, Value]:
    """Count the cells where dual focal loss is below focal loss."""
    table, (_, after) = columns("bsce-gra", "ablation"), _main()
    return {
        "DFL-Loss below FL-Loss": below(table["DFL-Loss"], among(table, ("FL-Loss",))),
        "DFL-GRA below FL-GRA": below(table["DFL-GRA"], among(table, ("FL-GRA",))),
        "DFL+TS below FL+TS": below(after["DFL+TS"], among(after, ("FL+TS",))),
    }


CLAIMS = {
    "bsce-gra-best-ece-table": (lowest, each_count("BSCE-GRA lowest", holds=6, fails=3)),
    "bsce-beats-scaled-focal-table": (
        loss_weighting_against_scaled,
        each_count("below FL+TS", "below DFL+TS", holds=6, fails=3),
    ),
    "bsce-gra-gradient-beats-loss-table": (
        gradient_against_loss,
        total_count(
            "the number of pairs of the ablation",
            (f"{kind}-GRA below {kind}-Loss" for kind in KINDS),
            6,
            5,
        ),
    ),
    "bsce-gra-brier-beats-focal-weights-table": (
        brier_against_focal_weights,
        total_count("the number of cells", ("BS-Loss lowest", "BS-GRA lowest"), 4, 3),
    ),
    "bsce-gra-ablation-same-phase": (phases_of_ablation, SAME_PHASE),
    "bsce-gra-dual-focal-beats-focal": (
        dual_against_focal,
        total_count("the number of cells", tuple(dual_against_focal()), 10, 5),
    ),
}
ENTRY = Entry(
    claims={claim: rule for claim, (_, rule) in CLAIMS.items()},
    statistic={claim: compute for claim, (compute, _) in CLAIMS.items()},
)
