"""Top-5 accuracy, NLL, MCE, OoD, early stopping and BLEU, from tables of Mukhoti et al. 2020."""

from experiments.papers import published
from experiments.papers.entry import Entry
from experiments.papers.judge.counting import (
    PHASES,
    Column,
    among,
    below,
    brief,
    columns,
    count,
    each_count,
    total_count,
    without,
)
from experiments.papers.judge.rules import FAILS, HOLDS, Judgement, Rule, Values
from experiments.papers.judge.values import Value

BASELINES = ("Cross-Entropy", "Brier Loss", "MMCE", "LS-0.05")
FOCAL = ("FL-3", "FLSD-53")


def top_five() -> dict[str, Value]:
    """Rank FLSD-53 by its top-5 accuracy in Table F.7."""
    table = columns("mukhoti", "F.7", "pre", "top5_accuracy")
    flsd, others = table["FLSD-53"], without(table, "FLSD-53")
    lead = {row: value - max(col[row] for col in others.values()) for row, value in flsd.items()}
    rank = {
        row: 1 + sum(column[row] > value for column in others.values())
        for row, value in flsd.items()
    }
    (tiny,) = (row for row in flsd if row.startswith("Tiny-ImageNet"))
    cifar = {row: place == 1 for row, place in rank.items() if row != tiny}
    leads = [lead[row] for row in cifar]
    return {
        "highest on CIFAR-100": count(cifar, lambda row: f"rank {rank[row]}"),
        "least lead on CIFAR-100": Value(min(leads)),
        "largest lead on CIFAR-100": Value(max(leads)),
        "rank on Tiny-ImageNet": Value(rank[tiny], rows=1),
        "lead on Tiny-ImageNet": Value(lead[tiny], rows=1),
    }


def _ranked(values: Values) -> Judgement:
    cifar = values["highest on CIFAR-100"]
    tiny = values["rank on Tiny-ImageNet"].value == 2
    close = values["lead on Tiny-ImageNet"].value >= -0.5
    return Judgement(HOLDS if cifar.value == cifar.rows and tiny and close else FAILS)


RANKED = Rule(
    "holds if FLSD-53 is highest on every CIFAR-100 network, and second within 0.5 points on"
    " Tiny-ImageNet; does not hold otherwise",
    _ranked,
    ("highest on CIFAR-100", "rank on Tiny-ImageNet", "lead on Tiny-ImageNet"),
)


def _below_baselines(name: str, phase: str) -> dict[str, Value]:
    table, when = columns("mukhoti", name, phase), PHASES[phase]
    flsd, focal = table["FLSD-53"], without(table, *BASELINES)
    least = {
        row: min(column[row] for column in focal.values())
        <= min(table[method][row] for method in BASELINES)
        for row in flsd
    }
    return {
        f"below all baselines {when}": below(flsd, among(table, BASELINES)),
        f"below CE {when}": brief(below(flsd, among(table, BASELINES[:1]))),
        f"a focal variant is the least of {len(table)} {when}": count(least),
    }


def nll() -> dict[str, Value]:
    """Count by NLL, tables F.8 and F.9."""
    return _below_baselines("F.8", "pre") | _below_baselines("F.9", "post")


def maximum_calibration_error() -> dict[str, Value]:
    """Count by MCE, tables F.10 and F.11, also without rows that F.11 repeats from F.10."""
    before, after = columns("mukhoti", "F.10", "pre"), columns("mukhoti", "F.11", "post")
    rows = before["FLSD-53"]
    repeated = [row for row in rows if all(before[one][row] == after[one][row] for one in before)]
    kept = {
        method: {row: value for row, value in column.items() if row not in repeated}
        for method, column in after.items()
    }
    return {
        **_below_baselines("F.10", "pre"),
        **_below_baselines("F.11", "post"),
        "rows of F.11 that repeat F.10 in every column": Value(
            len(repeated), rows=len(rows), note="; ".join(repeated)
        ),
        "below all baselines after scaling, without repeated rows": brief(
            below(kept["FLSD-53"], among(kept, BASELINES))
        ),
    }


def doubled_cells() -> dict[str, Value]:
    """Compare values that are printed in two tables, and those that T = 1 leaves unchanged."""
    counts = {}
    for first, second in (("T1", "F.3"), ("F.1", "F.4"), ("F.2", "F.5"), ("T2", "F.6")):
        cells = {}
        for phase in ("pre",) if first == "T2" else PHASES:
            one, two = (columns("mukhoti", name, phase) for name in (first, second))
            for method in FOCAL:
                for row, value in one[method].items():
                    cells[f"{row}, {method}, {phase}"] = (value, two[method][row])
        counts[f"{first} and {second}"] = _equal(cells)
    error = columns("mukhoti", "T2", "pre")
    counts["top-1 of F.7 and 100 - T2"] = _equal(
        {
            f"{row}, {method}": (value, 100 - error[method][row])
            for method, column in columns("mukhoti", "F.7", "pre", "top1_accuracy").items()
            for row, value in column.items()
        }
    )
    counts["T = 1, before and after"] = _equal(
        {
            f"{name}, {' '.join(place)}, {method}": (
                published.table("mukhoti", name, "pre")[place][method].value,
                number.value,
            )
            for name in ("T1", "F.1", "F.2", "F.3", "F.4", "F.5")
            for place, numbers in published.table("mukhoti", name, "post").items()
            for method, number in numbers.items()
            if number.temperature == 1
        }
    )
    return counts


def _equal(cells: dict[str, tuple[float, float]]) -> Value:
    flags = {place: abs(first - second) < 1e-9 for place, (first, second) in cells.items()}
    return count(flags, lambda place: "{:g} and {:g}".format(*cells[place]))


def _agree(values: Values) -> Judgement:
    return Judgement(HOLDS if all(v.value == v.rows for v in values.values()) else FAILS)


AGREE = Rule(
    "holds if every pair of doubled cells agrees; does not hold on one disagreement",
    _agree,
)


def ood_highest() -> dict[str, Value]:
    """Count the rows of Table 3 whose highest AUROC belongs to a focal loss."""
    counts = {}
    for phase, when in PHASES.items():
        table = columns("mukhoti", "T3", phase)

        def why(row: str, table: dict[str, dict[str, float]] = table) -> str:
            return ", ".join(f"{method} {column[row]:g}" for method, column in table.items())

        highest = {
            row: max((column[row], method) for method, column in table.items())[1]
            for row in table["FLSD-53"]
        }
        flags = {row: method in FOCAL for row, method in highest.items()}
        counts[f"a focal loss highest {when}"] = count(flags, why)
        flags = {row: method == "FLSD-53" for row, method in highest.items()}
        counts[f"FLSD-53 highest {when}"] = brief(count(flags))
    return counts


def ood_before_against_after() -> dict[str, Value]:
    """Compare focal losses before scaling with the best baseline after it, in Table 3."""
    before, after = (columns("mukhoti", "T3", phase) for phase in PHASES)
    best = {row: max(after[method][row] for method in BASELINES) for row in after["FLSD-53"]}
    better = {row: max(before[method][row] for method in FOCAL) for row in best}
    counts = {}
    for name, column in (*among(before, FOCAL).items(), ("the better of the two", better)):
        flags = {row: value > best[row] for row, value in column.items()}

        def why(row: str, column: Column = column) -> str:
            return f"{column[row]:g}, best baseline {best[row]:g}"

        counts[name] = count(flags, why)
    return counts


def early_stopping() -> dict[str, Value]:
    """Compare FLSD-53 with cross-entropy in Table J.1, by error and by ECE."""
    tables = [columns("mukhoti", "J.1", "pre", metric) for metric in ("error", "ECE")]
    values = {
        method: tuple(next(iter(table[method].values())) for table in tables)
        for method in tables[0]
    }

    def lower(pairs: dict[str, tuple[str, str]]) -> Value:
        flags = {
            criterion: all(a < b for a, b in zip(values[focal], values[entropy], strict=True))
            for criterion, (focal, entropy) in pairs.items()
        }
        return count(flags, lambda key: " against ".join(str(values[one]) for one in pairs[key]))

    criteria = ("ECE", "NLL", "Error")
    stopped = {name: f"CE early-stop on {name}" for name in criteria}
    return {
        "lower in both, same criterion": lower(
            {name: (f"FLSD-53 early-stop on {name}", entropy) for name, entropy in stopped.items()}
        ),
        "lower in both, FLSD-53 never stopped": lower(
            {name: ("FLSD-53 full", entropy) for name, entropy in stopped.items()}
        ),
        "lower in both, neither stopped": lower({"error and ECE": ("FLSD-53 full", "CE full")}),
    }


def translation() -> dict[str, Value]:
    """Read the best test BLEU over temperatures of each loss, appendix K."""
    note = "one run, no spread published"
    table = columns("mukhoti", "text K")
    return {name: Value(next(iter(row.values())), note=note) for name, row in table.items()}


def _ascends(values: Values) -> Judgement:
    entropy, smooth, focal = (values[name].value for name in ("Cross-Entropy", "LS", "Focal"))
    return Judgement(HOLDS if entropy < smooth < focal else FAILS)


ASCENDS = Rule(
    "holds, as printed, if BLEU rises from CE to label smoothing to focal loss; does not hold"
    " otherwise; whether the gaps exceed noise needs runs",
    _ascends,
    ("Cross-Entropy", "LS", "Focal"),
)

CLAIMS = {
    "mukhoti-top5-table": (top_five, RANKED),
    "mukhoti-nll-lower-table": (
        nll,
        each_count(*(f"below all baselines {when}" for when in PHASES.values()), holds=6, fails=5),
    ),
    "mukhoti-mce-lower": (
        maximum_calibration_error,
        each_count(*(f"below all baselines {when}" for when in PHASES.values()), holds=6, fails=5),
    ),
    "mukhoti-tables-agree-with-themselves": (doubled_cells, AGREE),
    "mukhoti-ood-focal-highest-table": (
        ood_highest,
        total_count(
            "the number of rows where a focal loss is highest",
            (f"a focal loss highest {when}" for when in PHASES.values()),
            8,
            4,
        ),
    ),
    "mukhoti-ood-focal-pre-beats-others-post": (
        ood_before_against_after,
        each_count("the better of the two", holds=4, fails=2),
    ),
    "mukhoti-early-stop-focal-wins-table": (
        early_stopping,
        each_count("lower in both, same criterion", holds=3, fails=2),
    ),
    "mukhoti-focal-full-beats-ce-any-stop": (
        early_stopping,
        each_count("lower in both, FLSD-53 never stopped", holds=3, fails=2),
    ),
    "mukhoti-translation-bleu-table": (translation, ASCENDS),
}
ENTRY = Entry(
    claims={claim: rule for claim, (_, rule) in CLAIMS.items()},
    statistic={claim: compute for claim, (compute, _) in CLAIMS.items()},
)
