"""Table 1 of the AdaFocal slides (Ghosh et al. 2022) recounted."""

from experiments.papers.entry import Entry
from experiments.papers.judge.counting import (
    PHASES,
    below,
    brief,
    columns,
    count,
    each_count,
    inside,
    temperatures,
    without,
)
from experiments.papers.judge.rules import FAILS, HOLDS, Judgement, Rule, Values
from experiments.papers.judge.values import Value


def lowest(phase: str) -> dict[str, Value]:
    """Count the rows where AdaFocal is strictly the lowest of six."""
    table = columns("adafocal", "Table 1", phase)
    return {"AdaFocal lowest": below(table["AdaFocal"], without(table, "AdaFocal"))}


def change_by_scaling() -> dict[str, Value]:
    """Count where temperature scaling lowers, keeps or raises AdaFocal's error."""
    before, after = (columns("adafocal", "Table 1", phase)["AdaFocal"] for phase in PHASES)
    fall = {row: before[row] - after[row] for row in before}
    return {
        "falls": count({row: value > 1e-9 for row, value in fall.items()}),
        "unchanged": count({row: abs(value) <= 1e-9 for row, value in fall.items()}),
        "rises": count({row: value < -1e-9 for row, value in fall.items()}),
    }


def near_one() -> dict[str, Value]:
    """Count temperatures in [0.9, 1.1], and rows where AdaFocal needs no scaling to be lowest."""
    fitted = temperatures("adafocal", "Table 1")
    before, after = (columns("adafocal", "Table 1", phase) for phase in PHASES)
    scaled = without(after, "AdaFocal")
    methods = ("AdaFocal", "CE", "FLSD-53")
    near = {f"T of {method} in [0.9, 1.1]": inside(fitted[method], 0.9, 1.1) for method in methods}
    return {
        "T of AdaFocal in [0.9, 1.1]": near.pop("T of AdaFocal in [0.9, 1.1]"),
        **{name: brief(value) for name, value in near.items()},
        "T of AdaFocal is 1.00": brief(inside(fitted["AdaFocal"], 1, 1)),
        "least T of AdaFocal": Value(min(fitted["AdaFocal"].values())),
        "largest T of AdaFocal": Value(max(fitted["AdaFocal"].values())),
        "AdaFocal unscaled below all others scaled": brief(below(before["AdaFocal"], scaled)),
    }


def excess_on_imagenet() -> dict[str, Value]:
    """Compute how far FLSD-53 and AdaFocal lie above cross-entropy on ImageNet, in points."""
    table = columns("adafocal", "Table 1", "pre")
    rows = [row for row in table["CE"] if row.startswith("ImageNet,")]
    return {
        f"{method} minus CE, {row}": Value(table[method][row] - table["CE"][row])
        for method in ("FLSD-53", "AdaFocal")
        for row in rows
    }


def _fails_there(values: Values) -> Judgement:
    flsd = [value.value for name, value in values.items() if name.startswith("FLSD-53")]
    ada = [value.value for name, value in values.items() if name.startswith("AdaFocal")]
    return Judgement(HOLDS if min(flsd) > 5 and max(ada) <= 0 else FAILS)


FAILS_THERE = Rule(
    "holds if FLSD-53 exceeds CE by more than 5 points, and AdaFocal does not exceed it, in every"
    " row; does not hold otherwise",
    _fails_there,
)

CLAIMS = {
    "adafocal-best-14-of-15-pre": (
        lambda: lowest("pre"),
        each_count("AdaFocal lowest", holds=14, fails=13),
    ),
    "adafocal-best-12-of-15-post": (
        lambda: lowest("post"),
        each_count("AdaFocal lowest", holds=12, fails=11),
    ),
    "adafocal-benefits-from-ts": (change_by_scaling, each_count("falls", holds=8, fails=7)),
    "adafocal-inherently-calibrated": (
        near_one,
        each_count("T of AdaFocal in [0.9, 1.1]", holds=15, fails=7),
    ),
    "adafocal-flsd-fails-on-imagenet": (excess_on_imagenet, FAILS_THERE),
}
ENTRY = Entry(
    claims={claim: rule for claim, (_, rule) in CLAIMS.items()},
    statistic={claim: compute for claim, (compute, _) in CLAIMS.items()},
)
