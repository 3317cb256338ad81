"""The points of the law: log T of cross-entropy, and log T of another loss, predicted and measured.

They come from the new sets (frozen predictions), the map, full networks and published tables.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from experiments.map import heads
from experiments.map.settings import BASELINE, Setting, settings
from experiments.papers import verdicts

CLASSES = {"banking77": 77, "clinc150": 150, "newsgroups": 20}
PUBLISHED = verdicts.FOLDER.parents[1] / "published" / "paper-tables.csv"
_TABLES = (("mukhoti2020_focal_calibration", "T1"), ("ghosh2022_adafocal_slides", "Table 1"))
_NAMES = {
    "CE": BASELINE,
    "Cross-Entropy": BASELINE,
    "FL-3": "focal_3",
    "FLSD-53": "flsd53",
    "AdaFocal": "adafocal",
    "Brier": "brier",
    "Brier Loss": "brier",
    "LS": "label_smoothing",
    "LS-0.05": "label_smoothing",
    "MMCE": "mmce",
}
_PUBLISHED_CLASSES = {
    **{"CIFAR-10": 10, "CIFAR-100": 100, "Tiny-ImageNet": 200, "TinyImageNet": 200},
    **{"ImageNet": 1000, "20 Newsgroups": 20, "20Newsgroup": 20, "SST Binary": 2},
}


class Point(NamedTuple):
    """A place and a loss; a place is what differs in nothing but the loss.

    Attributes:
      source: "new sets", "map", "networks" or "published".
      group: the data set, or the network.
      place: the weight decay with its condition.
      classes: the number of classes.
      loss: the loss.
      base: log T of cross-entropy, mean over the seeds.
      predicted: log T that cross-entropy's logits predict; NaN where there is no prediction.
      measured: log T.
      dead: whether cross-entropy, or the loss where no frozen rule says otherwise, errs on more
        than 90 % of chance.
    """

    source: str
    group: str
    place: str
    classes: int
    loss: str
    base: float
    predicted: float
    measured: float
    dead: bool = False


def log_mean(temperatures: Any) -> Any:
    """Average log T over the seeds; NaN where a seed has no T."""
    return np.log(np.asarray(temperatures, float)).mean(axis=-1)


def _dead(classes: int, *errors: Any) -> Any:
    means = [np.mean(np.asarray(of, float), axis=-1) for of in errors]
    return np.max(means, axis=0) > 0.9 * (1 - 1 / classes)


def values_of(records: Mapping[str, Any], name: str, loss: str, *variants: str) -> Any:
    """Return the values of a set and a loss by metric, `[weight decays, seeds]`; None if none.

    Args:
      records: the records of `experiments.map.law`.
      name: the set.
      loss: the loss.
      variants: the trainings whose seeds are joined; by default the first three seeds.
    """
    keys = [" ".join(filter(None, (name, loss, variant))) for variant in variants or ("",)]
    found = [records[key]["values"] for key in keys if key in records]
    if not found:
        return None
    return {metric: np.concatenate([of[metric] for of in found], axis=1) for metric in found[0]}


def _by_decay(at: tuple[str, str, int, str], columns: tuple[Any, ...]) -> list[Point]:
    """Return a point for each weight decay from columns of log T and of dead networks."""
    source, name, classes, loss = at
    rows = zip(heads.WEIGHT_DECAYS, *columns, strict=True)
    return [Point(source, name, f"{decay:g}", classes, loss, *of) for decay, *of in rows]


def of_sets(frozen: Mapping[str, Any], records: Mapping[str, Any], *variants: str) -> list[Point]:
    """Return the points of the new sets, whose predictions were frozen; variants as `values_of`."""
    found = []
    for name, of_set in frozen.items():
        base = values_of(records, name, BASELINE, *variants)
        for loss in list(heads.LOSSES)[1:]:
            if (values := values_of(records, name, loss, *variants)) is None:
                continue
            classes, predicted = of_set["classes"], of_set["predicted"].get(loss)
            # The frozen rules ask for the error of cross-entropy alone.
            errors = [base["error"], *([] if loss in heads.CONSTANT else [values["error"]])]
            columns = (
                log_mean(base["temperature"]),
                log_mean(predicted["temperature"]) if predicted else np.full(6, np.nan),
                log_mean(values["temperature"]),
                _dead(classes, *errors),
            )
            found += _by_decay(("new sets", name, classes, loss), columns)
    return found


def of_variant(records: Mapping[str, Any], variant: str) -> list[Point]:
    """Return the points of another training of the new sets, predicted by its cross-entropy."""
    found = []
    for record in records.values():
        if record.get("variant") != variant or record["loss"] == BASELINE:
            continue
        base = records[f"{record['set']} {BASELINE} {variant}"]
        classes = int(record["set"].lstrip("abcdefghijklmnopqrstuvwxyz"))
        columns = (
            log_mean(base["values"]["temperature"]),
            log_mean(base["predicted"][record["loss"]]["temperature"]),
            log_mean(record["values"]["temperature"]),
            _dead(classes, base["values"]["error"], record["values"]["error"]),
        )
        found += _by_decay((variant, record["set"], classes, record["loss"]), columns)
    return found


def of_map(records: Mapping[str, Any]) -> list[Point]:
    """Return the points of the map."""
    found = []
    for setting in settings():
        record = records.get(setting.name)
        base = records.get(Setting(*setting._replace(loss=BASELINE)).name)
        if setting.loss == BASELINE or not record or not base:
            continue
        predicted = base.get("predicted", {}).get(setting.loss)
        classes = CLASSES[setting.texts]
        found.append(
            Point(
                *("map", setting.texts, f"{setting.weight_decay:g} {setting.condition}".strip()),
                *(classes, setting.loss, float(log_mean(base["values"]["temperature"]))),
                float(log_mean(predicted)) if predicted else float("nan"),
                float(log_mean(record["values"]["temperature"])),
                bool(_dead(classes, base["values"]["error"], record["values"]["error"])),
            )
        )
    return found


def of_networks(records: Mapping[str, Any]) -> list[Point]:
    """Return the points of full networks."""
    found = []
    for name, record in records.items():
        base = record["losses"][BASELINE]
        for loss, of in record["losses"].items():
            if loss == BASELINE:
                continue
            predicted = float(log_mean(of["predicted"])) if "predicted" in of else float("nan")
            temperatures = float(log_mean(base["measured"])), float(log_mean(of["measured"]))
            dead = bool(_dead(record["classes"], base["error"], of["error"]))
            at = "networks", name, "", record["classes"], loss
            found.append(Point(*at, temperatures[0], predicted, temperatures[1], dead))
    return found


def published() -> list[Point]:
    """Return the temperatures that two papers print; they chose them by the ECE on a grid of .1."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["temperature"]]
    by_network: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        if (row["source"], row["table"]) in _TABLES and row["method"] in _NAMES:
            key = row["source"], row["dataset"], row["model"]
            by_network.setdefault(key, {})[_NAMES[row["method"]]] = float(row["temperature"])
    found = []
    for (source, dataset, model), of in by_network.items():
        for loss, t in of.items():
            if loss != BASELINE:
                at = "published", dataset, f"{source} {model}", _PUBLISHED_CLASSES[dataset], loss
                found.append(Point(*at, np.log(of[BASELINE]), np.nan, np.log(t)))
    return found


def interval(values: Iterable[Any]) -> tuple[float, float, float]:
    """Return a mean with its 90 % t-interval; without ends for a single value."""
    of = np.asarray(list(values), float)
    if len(of) < 2:
        return float(of.mean()), -np.inf, np.inf
    half = stats.t.ppf(0.95, len(of) - 1) * of.std(ddof=1) / np.sqrt(len(of))
    return float(of.mean()), float(of.mean() - half), float(of.mean() + half)


class Agreement(NamedTuple):
    """How well predictions agree with measurements, in log T.

    Attributes:
      places: the number of points.
      groups: the number of sets or networks.
      bias: the mean of log(measured / predicted), with its 90 % interval.
      scatter: the standard deviation of the same.
      slope: of log measured on log predicted.
      rms: the root mean square of log(measured / predicted).
    """

    places: int
    groups: int
    bias: tuple[float, float, float]
    scatter: float
    slope: float
    rms: float


def agreement(points: Sequence[Point], *, over_groups: bool = False) -> Agreement:
    """Compare predictions with measurements.

    Args:
      points: of one loss; those without prediction or T are left out.
      over_groups: whether the interval is over the means of groups instead of over the points.
    """
    known = [p for p in points if np.isfinite(p.measured - p.predicted)]
    groups = list(dict.fromkeys(p.group for p in known))
    ratio = np.array([p.measured - p.predicted for p in known])
    of_groups = [np.mean([p.measured - p.predicted for p in known if p.group == g]) for g in groups]
    slope = np.nan
    if len(known) > 2:
        slope = np.polyfit([p.predicted for p in known], [p.measured for p in known], 1)[0]
    return Agreement(
        *(len(known), len(groups), interval(of_groups if over_groups else ratio)),
        *(float(ratio.std()), float(slope), float(np.sqrt(np.square(ratio).mean()))),
    )
