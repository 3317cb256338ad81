"""Table 1 of the AdaFocal slides (Ghosh et al. 2022) recounted."""

from experiments.papers.entries.recounted import Below, statistic
from experiments.papers.entry import computed
from experiments.papers.judge.counting import PHASES, brief, columns, count, each_count, inside
from experiments.papers.judge.rules import decided
from experiments.papers.judge.values import Value

OURS = "Table 1:AdaFocal"
LOWEST = Below("AdaFocal lowest", OURS, ("Table 1:*",))
UNSCALED = Below(
    "AdaFocal unscaled below all others scaled",
    OURS,
    tuple(f"Table 1:{name}+TS" for name in ("CE", "Brier", "MMCE", "LS", "FLSD-53")),
    brief=True,
)


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
    fitted = columns("adafocal", "Table 1", "post", field="temperature")
    ours = fitted["AdaFocal"]
    return {
        "T of AdaFocal in [0.9, 1.1]": inside(ours, 0.9, 1.1),
        **{
            f"T of {method} in [0.9, 1.1]": brief(inside(fitted[method], 0.9, 1.1))
            for method in ("CE", "FLSD-53")
        },
        "T of AdaFocal is 1.00": brief(inside(ours, 1, 1)),
        "least T of AdaFocal": Value(min(ours.values())),
        "largest T of AdaFocal": Value(max(ours.values())),
        **statistic("adafocal", UNSCALED, phases=("pre",))(),
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


FAILS_THERE = decided(
    "holds if FLSD-53 exceeds CE by more than 5 points, and AdaFocal does not exceed it, in every"
    " row; does not hold otherwise",
    lambda values: all(
        value.value > 5 if name.startswith("FLSD-53") else value.value <= 0
        for name, value in values.items()
    ),
)
ENTRY = computed(
    {
        "adafocal-best-14-of-15-pre": (
            statistic("adafocal", LOWEST, phases=("pre",)),
            each_count("AdaFocal lowest", holds=14, fails=13),
        ),
        "adafocal-best-12-of-15-post": (
            statistic("adafocal", LOWEST, phases=("post",)),
            each_count("AdaFocal lowest", holds=12, fails=11),
        ),
        "adafocal-benefits-from-ts": (change_by_scaling, each_count("falls", holds=8, fails=7)),
        "adafocal-inherently-calibrated": (
            near_one,
            each_count("T of AdaFocal in [0.9, 1.1]", holds=15, fails=7),
        ),
        "adafocal-flsd-fails-on-imagenet": (excess_on_imagenet, FAILS_THERE),
    }
)
