"""The rows that can be trained and judged again: each claim with its comparisons.

A comparison is a statistic of one training, minus that of another, signed so that the claim says
that it is positive. A rule needs all comparisons of its row.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Comparison(NamedTuple):
    """A difference between two trainings.

    Attributes:
      statistic: a key of `estimates.STATISTICS`, or "ce2" and "adaptive_ce2" for squared errors.
      first: a key of `trainings.TRAININGS`.
      second: the training that is subtracted; "" for the statistic of `first` alone.
      after: whether first and second are measured after the papers' temperature.
      margin: the change of root-CE2 of `second`, or of another statistic, that is allowed.
    """

    statistic: str
    first: str
    second: str = ""
    after: tuple[bool, bool] = (False, False)
    margin: float = 0.0

    @property
    def name(self) -> str:
        """The comparison in words.

        >>> Comparison("ce2", "CE", "FL-3", (True, False)).name
        'ce2: CE after T - FL-3'
        """
        parts = [
            label + " after T" * scaled
            for label, scaled in zip((self.first, self.second), self.after, strict=True)
            if label
        ]
        margin = f" + {self.margin:g}" if self.margin else ""
        return f"{self.statistic}: {' - '.join(parts)}{margin}"


def _all(
    statistic: str, firsts: Iterable[str], second: str, *, after: bool = False
) -> tuple[Comparison, ...]:
    return tuple(Comparison(statistic, first, second, (after, after)) for first in firsts)


def _one(statistic: str, first: str, second: str = "", **more: float) -> tuple[Comparison, ...]:
    return (Comparison(statistic, first, second, **more),)  # type: ignore[arg-type]


_LOSSES = ("CE", "Brier", "MMCE", "LS-0.05")
_BOTH = ("ce2", "adaptive_ce2")
_STANDARD = "BSCE-GRA"

ROWS: dict[str, tuple[Comparison, ...]] = {
    "guo-resnet-overconfident": _one("confidence - accuracy", "CE"),
    "guo-lenet-better-calibrated-than-resnet": (
        *_one("error", "LeNet CE", "CE"),
        *_one("ce2", "CE", "LeNet CE"),
    ),
    "guo-batchnorm-hurts-calibration": _one("ce2", "CE", "CE, no norm"),
    "guo-weight-decay-helps-calibration": (
        *_one("ce2", "CE, decay 0", "CE"),
        *_one("error", "CE, decay 0", "CE"),
    ),
    "guo-ts-lowers-ece": (Comparison("ce2", "CE", "CE", (False, True)),),
    "mukhoti-focal-better-calibrated-than-ce": (
        *_one("ce2", "CE", "FL-3"),
        *_one("ce2", "CE", "FLSD-53"),
    ),
    "mukhoti-flsd-outperforms-own": (
        *_all("ce2", _LOSSES, "FLSD-53"),
        *_all("ce2", _LOSSES, "FLSD-53", after=True),
    ),
    "mukhoti-accuracy-preserved-own": _one("error", "CE", "FLSD-53", margin=0.005),
    "mukhoti-newsgroups-focal": (
        *_all("ce2", ["CNN CE"], "CNN FLSD-53"),
        *_all("ce2", ["CNN CE"], "CNN FLSD-53", after=True),
    ),
    "mukhoti-ls-favourable": _one("ce2", "CE", "LS-0.05"),
    "mukhoti-ls-005-better-than-01": _one("ce2", "LS-0.1", "LS-0.05"),
    "mukhoti-large-gamma-gradients-die": _all(
        "error", ("LeNet FL-10", "LeNet FL-20", "LeNet FL-50"), "LeNet FL-3"
    ),
    "mukhoti-gamma-order-3-2-1-own": (*_one("ce2", "FL-1", "FL-2"), *_one("ce2", "FL-2", "FL-3")),
    "mukhoti-top5-own": (
        *_one("top-3 accuracy", "FLSD-53", "CE"),
        *_one("p_y of wrong", "FLSD-53", "CE"),
    ),
    "mukhoti-s99-lower-before-ts": _all("above .99", ("CE", "MMCE"), "FLSD-53"),
    "mukhoti-s99-higher-after-ts": tuple(
        Comparison("above .99", "FLSD-53", other, (True, True)) for other in ("CE", "MMCE")
    ),
    "mukhoti-focal-unsure-where-wrong": _one("confidence of wrong", "CE", "FLSD-53"),
    "mukhoti-ci-significant": tuple(
        comparison for name in _BOTH for comparison in _all(name, ("CE", "MMCE"), "FLSD-53")
    ),
    "adafocal-inverse-focal-raises-confidence": _one("confidence", "LeNet inverse 2", "LeNet CE"),
    "adafocal-gamma4-best-fixed": _all("adaptive_ce2", ("CE", "FL-3", "FL-5"), "FL-4"),
    "adafocal-beats-ce-flsd-cifar10": _all("adaptive_ce2", (*_LOSSES, "FLSD-53"), "AdaFocal"),
    "adafocal-error-not-worse": _one("error", "CE", "AdaFocal", margin=0.005),
    "adafocal-newsgroups-cnn": _all("adaptive_ce2", ("CNN CE", "CNN FLSD-53"), "CNN AdaFocal"),
    "adafocal-newsgroups-bert": tuple(
        comparison
        for after in (False, True)
        for comparison in _all(
            "adaptive_ce2", ("BERT CE", "BERT FLSD-53"), "BERT AdaFocal", after=after
        )
    ),
    "bsce-gra-beats-ce-own": (
        *_one("ce2", "CE", _STANDARD),
        Comparison("ce2", "CE", _STANDARD, (True, False)),
    ),
    "bsce-gra-gradient-beats-loss-own": (
        *_one("ce2", "FL-3", "FL-GRA"),
        *_one("ce2", "dual focal", "DFL-GRA"),
        *_one("ce2", "BSCE", _STANDARD),
    ),
    "bsce-gra-brier-beats-focal-weights-own": _all("ce2", ("FL-GRA", "DFL-GRA"), _STANDARD),
    "bsce-gra-standard-hyperparameters-suffice": tuple(
        Comparison("ce2", f"BSCE-GRA {other}", _STANDARD, margin=0.005)
        for other in ("1, 2", "3, 2", "2, 1")
    ),
    "recall-improves-rare-class-recall": _one("recall of rare classes", "LT recall", "LT CE"),
}
# Parts of a claim that a row does not compute.
WITHOUT = {
    "mukhoti-ci-significant": "the direction of label smoothing, which is better here",
    "mukhoti-large-gamma-gradients-die": "the margin of five points for gamma 20 or 50",
    "recall-improves-rare-class-recall": "street scenes",
}
