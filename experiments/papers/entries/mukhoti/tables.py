"""The tables of Mukhoti et al. 2020 recounted."""

from collections.abc import Callable, Mapping

from experiments.papers import published
from experiments.papers.entries.recounted import Below, Count, statistic
from experiments.papers.entry import computed
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
    inside,
    one_count,
    total_count,
    without,
)
from experiments.papers.judge.rules import Values, decided
from experiments.papers.judge.values import Value

CE, BRIER, SMOOTHING = "Cross-Entropy", "Brier Loss", "LS-0.05"
BASELINES = (CE, BRIER, "MMCE", SMOOTHING)
FOCAL = ("FL-3", "FLSD-53")
SCHEDULES = ("FLSc-531", "FLSc-532")
BEFORE, AFTER = PHASES.values()
BOTH = (f"FLSD-53 {BEFORE}", f"FLSD-53 {AFTER}")


def _of(table: str, *methods: str) -> tuple[str, ...]:
    return tuple(f"{table}:{method}" for method in methods)


def _against_ce(*methods: str) -> tuple[Below, ...]:
    """Compare columns of Table 1 with cross-entropy."""
    return tuple(Below(f"{name} {{when}}", f"T1:{name}", _of("T1", CE)) for name in methods)


def _against_baselines(table: str) -> tuple[Count, ...]:
    """Compare FLSD-53 and FL-3 with all four baselines, and FLSD-53 with all others."""

    def attained(phase: str) -> dict[str, Value]:
        name = f"a focal loss attains the minimum, ties counted, {PHASES[phase]}"
        return {name: _attained(columns("mukhoti", table, phase), FOCAL)}

    return (
        Below("FLSD-53 {when}", f"{table}:FLSD-53", _of(table, *BASELINES)),
        Below("FL-3 {when}", f"{table}:FL-3", _of(table, *BASELINES), brief=True),
        Below("FLSD-53 lowest of six {when}", f"{table}:FLSD-53", _of(table, "*"), brief=True),
        attained,
    )


def _attained(table: Mapping[str, Column], focal: tuple[str, ...]) -> Value:
    """Count the rows where the least of focal losses is at most the least baseline."""
    least = {
        row: [min(table[method][row] for method in of) for of in (focal, BASELINES)]
        for row in table["FLSD-53"]
    }
    return count({row: ours <= theirs for row, (ours, theirs) in least.items()})


def keeps_accuracy() -> dict[str, Value]:
    """Count the rows of Table 2 where a focal loss has at most 0.5 points more error."""
    table = columns("mukhoti", "T2", "pre")
    counts = {}
    for method in FOCAL:
        change = {row: value - table[CE][row] for row, value in table[method].items()}
        # The tolerance absorbs the rounding of the difference of two printed decimals.
        flags = {row: value <= 0.5 + 1e-9 for row, value in change.items()}
        signed = {row: f"{value:+.2f}" for row, value in change.items()}
        counts[f"{method} at most 0.5 points worse"] = count(flags, signed.__getitem__)
        counts[f"{method} better"] = brief(below(table[method], among(table, (CE,))))
        counts[f"{method}, least change"] = Value(min(change.values()))
        counts[f"{method}, largest change"] = Value(max(change.values()))
    return counts


def temperatures_inside(*methods: str, low: float, high: float) -> Callable[[], dict[str, Value]]:
    """Return the statistic that counts the temperatures of Table 1 in an interval."""

    def compute() -> dict[str, Value]:
        fitted = columns("mukhoti", "T1", "post", field="temperature")
        return {f"T of {method}": inside(fitted[method], low, high) for method in methods}

    return compute


def near_one_but_worse() -> dict[str, Value]:
    """Count temperatures near 1 of Brier and label smoothing, and where FLSD-53 is below them."""
    methods = (BRIER, SMOOTHING)
    lower = (
        Below(f"FLSD-53 below {name} {{when}}", "T1:FLSD-53", _of("T1", name)) for name in methods
    )
    near = temperatures_inside(*methods, low=0.9, high=1.1)
    return near() | statistic("mukhoti", *lower)()


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
        "Mukhoti's rows": below(ours["FLSD-53"], {"CE": ours[CE]}),
        "AdaFocal's rows": below(theirs["FLSD-53"], {"CE": theirs["CE"]}),
        "worst data set": Value(
            least[worst], rows=len(excess[worst]), note=f"{worst}: points above CE, at least"
        ),
    }


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


def _is_ranked(values: Values) -> bool:
    highest = values["highest on CIFAR-100"]
    second = values["rank on Tiny-ImageNet"].value == 2
    return (
        highest.value == highest.rows and second and values["lead on Tiny-ImageNet"].value >= -0.5
    )


def _pair_of_tables(before: str, after: str) -> dict[str, Value]:
    """Compare FLSD-53 with the baselines in a table before, and in one after scaling."""
    values: dict[str, Value] = {}
    for table, phase in ((before, "pre"), (after, "post")):
        numbers = columns("mukhoti", table, phase)
        counts = (
            Below("below all baselines {when}", f"{table}:FLSD-53", _of(table, *BASELINES)),
            Below("below CE {when}", f"{table}:FLSD-53", _of(table, CE), brief=True),
        )
        values |= statistic("mukhoti", *counts, phases=(phase,))()
        name = f"a focal variant is the least of {len(numbers)} {PHASES[phase]}"
        values[name] = _attained(numbers, tuple(without(numbers, *BASELINES)))
    return values


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
        **_pair_of_tables("F.10", "F.11"),
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


def ood_highest(phase: str) -> dict[str, Value]:
    """Count the rows of Table 3 whose highest AUROC belongs to a focal loss."""
    table, when = columns("mukhoti", "T3", phase), PHASES[phase]
    highest = {
        row: max((column[row], method) for method, column in table.items())[1]
        for row in table["FLSD-53"]
    }
    return {
        f"a focal loss highest {when}": count(
            {row: method in FOCAL for row, method in highest.items()},
            lambda row: ", ".join(f"{method} {column[row]:g}" for method, column in table.items()),
        ),
        f"FLSD-53 highest {when}": count(
            {row: method == "FLSD-53" for row, method in highest.items()}
        ),
    }


def ood_before_against_after() -> dict[str, Value]:
    """Compare focal losses before scaling with the best baseline after it, in Table 3."""
    before, after = (columns("mukhoti", "T3", phase) for phase in PHASES)
    best = {row: max(after[method][row] for method in BASELINES) for row in after["FLSD-53"]}
    better = {row: max(before[method][row] for method in FOCAL) for row in best}
    return {
        name: _above(column, best)
        for name, column in (*among(before, FOCAL).items(), ("the better of the two", better))
    }


def _above(column: Column, best: Column) -> Value:
    flags = {row: value > best[row] for row, value in column.items()}
    return count(flags, lambda row: f"{column[row]:g}, best baseline {best[row]:g}")


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

    stopped = {name: f"CE early-stop on {name}" for name in ("ECE", "NLL", "Error")}
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


def order_of_gammas(phase: str) -> dict[str, Value]:
    """Count the rows where ECE falls from gamma 1 to 2 to 3, and where 3 is the least."""
    chosen = among(columns("mukhoti", "F.3", phase), ("FL-1", "FL-2", "FL-3"))
    one, two, three = chosen.values()
    return {
        f"1 > 2 > 3 {PHASES[phase]}": count(
            {row: one[row] > two[row] > three[row] for row in one},
            lambda row: ", ".join(f"{column[row]:g}" for column in chosen.values()),
        ),
        f"FL-3 least {PHASES[phase]}": brief(below(three, {"FL-1": one, "FL-2": two})),
    }


CONSISTENT = decided(
    "holds if FLSD-53 is below CE in every row of both tables; does not hold if it is at least 5"
    " points above CE on every network of one data set; undecided otherwise",
    lambda values: all(
        values[name].value == values[name].rows for name in ("Mukhoti's rows", "AdaFocal's rows")
    ),
    lambda values: values["worst data set"].value >= 5,
    ("Mukhoti's rows", "AdaFocal's rows", "worst data set"),
)
RANKED = decided(
    "holds if FLSD-53 is highest on every CIFAR-100 network, and second within 0.5 points on"
    " Tiny-ImageNet; does not hold otherwise",
    _is_ranked,
    names=("highest on CIFAR-100", "rank on Tiny-ImageNet", "lead on Tiny-ImageNet"),
)
AGREE = decided(
    "holds if every pair of doubled cells agrees; does not hold on one disagreement",
    lambda values: all(v.value == v.rows for v in values.values()),
)
ASCENDS = decided(
    "holds, as printed, if BLEU rises from CE to label smoothing to focal loss; does not hold"
    " otherwise; whether the gaps exceed noise needs runs",
    lambda values: values[CE].value < values["LS"].value < values["Focal"].value,
    names=(CE, "LS", "Focal"),
)
BELOW_ALL = each_count(
    f"below all baselines {BEFORE}", f"below all baselines {AFTER}", holds=6, fails=5
)

ENTRIES = {
    "tables": computed(
        {
            "mukhoti-focal-beats-ce-count": (
                statistic("mukhoti", *_against_ce(*FOCAL)),
                each_count(
                    *(f"{method} {when}" for when in PHASES.values() for method in FOCAL),
                    holds=11,
                    fails=5,
                ),
            ),
            "mukhoti-flsd-outperforms-all-pre": (
                statistic("mukhoti", *_against_baselines("T1"), phases=("pre",)),
                each_count(BOTH[0], holds=6, fails=5),
            ),
            "mukhoti-flsd-outperforms-all-post": (
                statistic("mukhoti", *_against_baselines("T1"), phases=("post",)),
                each_count(BOTH[1], holds=6, fails=5),
            ),
            "mukhoti-adaece-flsd-best": (
                statistic("mukhoti", *_against_baselines("F.1")),
                each_count(*BOTH, holds=6, fails=5),
            ),
            "mukhoti-classwise-ece-flsd-best": (
                statistic("mukhoti", *_against_baselines("F.2")),
                all_counts(*BOTH, holds=6, fails=5),
            ),
            "mukhoti-accuracy-preserved-table": (
                keeps_accuracy,
                each_count("FLSD-53 at most 0.5 points worse", holds=9, fails=5),
            ),
            "mukhoti-mmce-ts-beats-ce-ts": (
                statistic("mukhoti", *_against_ce("MMCE", BRIER)),
                each_count(f"MMCE {AFTER}", holds=6, fails=5),
            ),
            "mukhoti-flsd-temperature-near-one": (
                temperatures_inside("FLSD-53", "FL-3", low=0.9, high=1.1),
                each_count("T of FLSD-53", holds=6, fails=5),
            ),
            "mukhoti-ce-mmce-temperature-high": (
                temperatures_inside(CE, "MMCE", low=2.0, high=2.8),
                total_count(
                    "the number of temperatures in [2.0, 2.8]", (f"T of {CE}", "T of MMCE"), 12, 11
                ),
            ),
            "mukhoti-brier-ls-temperature-near-one": (
                near_one_but_worse,
                each_count(*near_one_but_worse(), holds=6, fails=5),
            ),
            "mukhoti-flsd-consistent-across-sets": (over_data_sets, CONSISTENT),
        }
    ),
    "rankings": computed(
        {
            "mukhoti-top5-table": (top_five, RANKED),
            "mukhoti-nll-lower-table": (lambda: _pair_of_tables("F.8", "F.9"), BELOW_ALL),
            "mukhoti-mce-lower": (maximum_calibration_error, BELOW_ALL),
            "mukhoti-tables-agree-with-themselves": (doubled_cells, AGREE),
            "mukhoti-ood-focal-highest-table": (
                statistic("mukhoti", ood_highest),
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
    ),
    "variants": computed(
        {
            "mukhoti-gamma-order-3-2-1-table": (
                statistic("mukhoti", order_of_gammas),
                each_count(f"1 > 2 > 3 {BEFORE}", holds=6, fails=5),
            ),
            "mukhoti-flsd-beats-other-focal": (
                statistic(
                    "mukhoti",
                    Below("least of seven {when}", "F.3:FLSD-53", ("F.3:*",)),
                    Below("below FL-3 {when}", "F.3:FLSD-53", ("F.3:FL-3",), brief=True),
                    Below(
                        "below both FLSc {when}", "F.3:FLSD-53", _of("F.3", *SCHEDULES), brief=True
                    ),
                    Below("below FLSD-532 {when}", "F.3:FLSD-53", ("F.3:FLSD-532",), brief=True),
                ),
                all_counts(f"least of seven {BEFORE}", f"least of seven {AFTER}", holds=6, fails=5),
            ),
            "mukhoti-flsc-531-vs-532": (
                statistic(
                    "mukhoti",
                    *(
                        Below(f"{name} below CE {{when}}", f"F.3:{name}", (f"CE=T1:{CE}",))
                        for name in SCHEDULES
                    ),
                    Below(
                        "FLSc-532 below FLSc-531 {when}",
                        "F.3:FLSc-532",
                        ("F.3:FLSc-531",),
                        brief=True,
                    ),
                ),
                each_count(*(f"{name} below CE {BEFORE}" for name in SCHEDULES), holds=6, fails=5),
            ),
            "mukhoti-flsd532-competitive": (
                statistic(
                    "mukhoti",
                    Below("below all baselines {when}", "F.3:FLSD-532", _of("T1", *BASELINES)),
                    Below("below FLSD-53 {when}", "F.3:FLSD-532", ("F.3:FLSD-53",), brief=True),
                ),
                one_count(f"below all baselines {BEFORE}", f"below all baselines {AFTER}", holds=6),
            ),
        }
    ),
}
