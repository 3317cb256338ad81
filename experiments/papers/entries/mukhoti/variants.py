"""The seven focal variants compared, from tables F.3 to F.6 of Mukhoti et al. 2020."""

from experiments.papers.entry import Entry
from experiments.papers.judge.counting import (
    PHASES,
    Column,
    all_counts,
    among,
    below,
    brief,
    columns,
    count,
    each_count,
    one_count,
    without,
)
from experiments.papers.judge.values import Value

BASELINES = ("Cross-Entropy", "Brier Loss", "MMCE", "LS-0.05")
SCHEDULES = ("FLSc-531", "FLSc-532")


def order_of_gammas() -> dict[str, Value]:
    """Count the rows where ECE falls from gamma 1 to 2 to 3, and where 3 is the least."""
    counts = {}
    for phase, when in PHASES.items():
        chosen = among(columns("mukhoti", "F.3", phase), ("FL-1", "FL-2", "FL-3"))
        one, two, three = chosen.values()
        flags = {row: one[row] > two[row] > three[row] for row in one}

        def why(row: str, table: dict[str, Column] = chosen) -> str:
            return ", ".join(f"{column[row]:g}" for column in table.values())

        counts[f"1 > 2 > 3 {when}"] = count(flags, why)
        counts[f"FL-3 least {when}"] = brief(below(three, {"FL-1": one, "FL-2": two}))
    return counts


def best_of_variants() -> dict[str, Value]:
    """Count the rows where FLSD-53 is the least of the seven, and below each other kind."""
    counts = {}
    for phase, when in PHASES.items():
        table = columns("mukhoti", "F.3", phase)
        flsd = table["FLSD-53"]
        counts[f"least of seven {when}"] = below(flsd, without(table, "FLSD-53"))
        for name, methods in (
            ("FL-3", ("FL-3",)),
            ("both FLSc", SCHEDULES),
            ("FLSD-532", ("FLSD-532",)),
        ):
            counts[f"below {name} {when}"] = brief(below(flsd, among(table, methods)))
    return counts


def schedules() -> dict[str, Value]:
    """Compare the two epoch schedules with cross-entropy and with each other."""
    counts = {}
    for phase, when in PHASES.items():
        table, base = (columns("mukhoti", name, phase) for name in ("F.3", "T1"))
        for method in SCHEDULES:
            counts[f"{method} below CE {when}"] = below(
                table[method], {"CE": base["Cross-Entropy"]}
            )
        first, second = (table[method] for method in SCHEDULES)
        counts[f"FLSc-532 below FLSc-531 {when}"] = brief(below(second, {"FLSc-531": first}))
    return counts


def policy_532() -> dict[str, Value]:
    """Compare FLSD-532 with the four baselines and with FLSD-53."""
    counts = {}
    for phase, when in PHASES.items():
        table, base = (columns("mukhoti", name, phase) for name in ("F.3", "T1"))
        policy = table["FLSD-532"]
        counts[f"below all baselines {when}"] = below(policy, among(base, BASELINES))
        counts[f"below FLSD-53 {when}"] = brief(below(policy, among(table, ("FLSD-53",))))
    return counts


CLAIMS = {
    "mukhoti-gamma-order-3-2-1-table": (
        order_of_gammas,
        each_count("1 > 2 > 3 before scaling", holds=6, fails=5),
    ),
    "mukhoti-flsd-beats-other-focal": (
        best_of_variants,
        all_counts(
            "least of seven before scaling", "least of seven after scaling", holds=6, fails=5
        ),
    ),
    "mukhoti-flsc-531-vs-532": (
        schedules,
        each_count(
            *(f"{method} below CE before scaling" for method in SCHEDULES), holds=6, fails=5
        ),
    ),
    "mukhoti-flsd532-competitive": (
        policy_532,
        one_count(
            "below all baselines before scaling", "below all baselines after scaling", holds=6
        ),
    ),
}
ENTRY = Entry(
    claims={claim: rule for claim, (_, rule) in CLAIMS.items()},
    statistic={claim: compute for claim, (compute, _) in CLAIMS.items()},
)
