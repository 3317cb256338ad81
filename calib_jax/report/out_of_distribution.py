"""Out-of-distribution detection by uncertainty scores."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import calib_jax.metrics as metrics_package
from calib_jax import inference, plots
from calib_jax.core import checks, texts
from calib_jax.core.arrays import as_array
from calib_jax.core.names import short_repr
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.types import Logits
from calib_jax.report import calibrate as calibration
from calib_jax.report import caveats, render
from calib_jax.report.caveats import GIVEN
from calib_jax.report.figures import file_names, literal
from calib_jax.report.predictions import FLOOR, as_logits, counted, same_examples

if TYPE_CHECKING:
    import matplotlib.figure

SCORES = ("entropy", "max_confidence", "energy")
METRICS = ("ood_auroc", "ood_aupr", "ood_fpr95")
# Rows whose logsumexp is this close to 0 are log-probabilities.
_NORMALISED = 1e-3


@dataclasses.dataclass(frozen=True)
class Detection:
    """A detection metric for one out-of-distribution set.

    Attributes:
      outside: the name of the set.
      predictions: "as given", or the calibrator's name.
      score: "entropy", "max_confidence" or "energy".
      metric: "ood_auroc", "ood_aupr" or "ood_fpr95".
      value: point estimate.
      low: lower end of the interval; NaN if all resamples are equal.
      high: upper end of the interval; NaN if all resamples are equal.
    """

    outside: str
    predictions: str
    score: str
    metric: str
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class OutOfDistribution:
    """The results of `out_of_distribution`.

    Attributes:
      settings: numbers of examples, level, resamples, seed.
      rows: the metrics.
      curves: the ROC curves, by set, predictions and score.
      calibrator: name and parameters of the calibrator, and data of the fit; empty without one.
      notes: why a score was left out.
    """

    settings: dict[str, Any]
    rows: list[Detection]
    curves: dict[tuple[str, str, str], Any]
    calibrator: dict[str, Any]
    notes: list[str] = dataclasses.field(default_factory=list)

    __repr__ = short_repr

    def value(self, outside: str, score: str, metric: str, predictions: str = GIVEN) -> float:
        """Return the value of one metric."""
        wanted = (outside, predictions, score, metric)
        found = (r for r in self.rows if (r.outside, r.predictions, r.score, r.metric) == wanted)
        if row := next(found, None):
            return row.value
        raise KeyError(f"there is no {metric!r} of {score!r} for {outside!r}, {predictions!r}")

    def __str__(self) -> str:
        return render.as_text(self._page())

    def _repr_markdown_(self) -> str:
        return render.as_markdown(self._page())

    def save(self, folder: Any) -> list[str]:
        """Save ood.json, .csv, .md, .html and a ROC figure for each set; return the file names."""
        page, cells = self._page(self.pictures()), [vars(row) for row in self.rows]
        record = {"settings": self.settings, "calibrator": self.calibrator, "metrics": cells}
        record = texts.without_nan(record | {"notes": page.notes})
        names = [field.name for field in dataclasses.fields(Detection)]
        others = {
            "ood.json": json.dumps(record, indent=1) + "\n",
            "ood.csv": texts.csv_lines(map(texts.in_csv, cells), names),
        }
        return render.save(folder, "ood", page, others)

    def pictures(self) -> dict[str, matplotlib.figure.Figure]:
        """Draw the ROC curves of each set: one per score, before and after calibration."""
        figures, settings = {}, self.settings
        names = file_names(settings["outside"])
        for outside, size in settings["outside"].items():
            keys = [key for key in self.curves if key[0] == outside]
            titles = [literal(f"{score}, {predictions}") for _, predictions, score in keys]
            areas = {
                (row.predictions, row.score): row.value
                if caveats.is_alone(row)
                else (row.value, row.low, row.high)
                for row in self.rows
                if row.metric == "ood_auroc" and row.outside == outside
            }
            curves = [self.curves[key] for key in keys]
            figures[f"roc_{names[outside]}"] = plots.roc(
                {t: each.false_positive_rate for t, each in zip(titles, curves, strict=True)},
                {t: each.true_positive_rate for t, each in zip(titles, curves, strict=True)},
                auroc={t: areas[key[1:]] for t, key in zip(titles, keys, strict=True)},
                title=f"{literal(outside)} (n = {size:,}) against the test set"
                f" (n = {settings['inside']:,})",
                level=settings["level"],
                width=5.2,
            )
        return figures

    def _page(self, figures: Mapping[str, matplotlib.figure.Figure] | None = None) -> render.Page:
        settings = self.settings
        sizes = ", ".join(f"{count:,} of {name}" for name, count in settings["outside"].items())
        head = (
            f"{counted(settings['inside'], 'example')} in distribution, out of it {sizes};"
            f" {100 * settings['level']:g}% intervals of {settings['resamples']:,} resamples of"
            f" each set{', whole clusters at a time' * settings['clusters']}."
            " An AUROC of .5 is chance; AUPR counts examples out of distribution as positives;"
            " FPR95 is the share in distribution that is rejected where 95 % of the others are."
        )
        if self.calibrator:
            head += f" {calibration.sentence(self.calibrator)}"
        rows: dict[tuple[str, str, str], list[str]] = {}
        for row in self.rows:  # those of one set, score and predictions are in the order of METRICS
            key = (row.outside, row.score, row.predictions)
            rows.setdefault(key, [*key]).append(caveats.with_interval(row))
        corner = "out of distribution"
        table = [[corner, "score", "predictions", *METRICS], *rows.values()]
        alone = (row.metric for row in self.rows if caveats.is_alone(row))
        marked = texts.reasons((row.value, row.low, row.high) for row in self.rows)
        return render.Page(
            title="Out-of-distribution detection",
            head=head,
            facts={"in distribution (n)": settings["inside"], "seed": settings["seed"]},
            sections=[render.Table(corner.capitalize(), table)],
            notes=[*self.notes, *caveats.note(caveats.CONSTANT, alone), *marked],
            figures=figures or {},
            metrics=METRICS,
        )


def out_of_distribution(
    inside: Any,
    outside: Mapping[str, Any],
    *,
    calibrate: str | None = None,
    fit_on: Any = None,
    criterion: str = "nll",
    scores: Sequence[str] | None = None,
    level: float = 0.9,
    method: str = "percentile",
    num_resamples: int = 1000,
    seed: int = 0,
    clusters: Any = None,
    probabilities: bool = False,
    floor: float | None = FLOOR,
) -> OutOfDistribution:
    """Measure how well uncertainty scores separate out-of-distribution sets from the test set.

    Args:
      inside: logits of the test set, `[n, classes]`.
      outside: logits of the out-of-distribution sets, by name.
      calibrate: a calibrator's name; metrics are reported before and after calibration.
      fit_on: logits, labels and optionally weights to fit the calibrator on. The calibrator is
        never fitted on the examples that are scored.
      criterion: what a temperature minimises; see `score`.
      scores: any of "entropy", "max_confidence" and "energy", by default all scores that the
        logits allow. The energy, -logsumexp of the logits, needs the offset of each row, so
        log-probabilities have no energy, and neither has the output of a calibrator that removes
        offsets. The energy is then left out, and `notes` gives the reason; if `scores` contains
        "energy" and the given logits have none, an error is raised.
      level: nominal coverage of the intervals, a fraction.
      method: "percentile" or "basic" intervals.
      num_resamples: number of bootstrap resamples; each set keeps its size.
      seed: seed of the bootstrap.
      clusters: the cluster of each row of `inside`, such as the image of a pixel, and the clusters
        of each set in `outside` by name, as integers. Whole clusters are resampled, and each set
        keeps its number of clusters.
      probabilities: whether all given predictions are probabilities.
      floor: smaller probabilities are raised to this value.

    >>> from calib_jax import report
    >>> sure = 4 * jax.nn.one_hot(jax.numpy.arange(200) % 3, 3)
    >>> detections = report.out_of_distribution(sure, {"noise": sure[:50] / 2}, num_resamples=20)
    >>> round(detections.value("noise", "entropy", "ood_auroc"), 6)
    1.0
    """
    wanted = SCORES if scores is None else tuple(scores)
    checks.seed(seed)
    for score in wanted:
        checks.one_of("score", score, SCORES)
    if not isinstance(outside, Mapping) or not outside or not wanted:
        raise ValueError("out_of_distribution: outside must map names to logits, and is empty.")
    _check_options(calibrate, fit_on, criterion, clusters, outside)
    how: dict[str, Any] = {"probabilities": probabilities, "floor": floor}
    given = {"inside": inside} | {f"outside[{name!r}]": rows for name, rows in outside.items()}
    sets = {GIVEN: {name: as_logits(rows, name=name, **how) for name, rows in given.items()}}
    without_energy, notes, described = set[str | None](), list[str](), dict[str, Any]()
    if "energy" in wanted and any(map(_normalised, sets[GIVEN].values())):
        why = "the rows are log-probabilities (logsumexp 0), and it needs the offset of each row"
        if scores is not None:
            raise ValueError(f"out_of_distribution: the score energy needs logits: {why}.")
        without_energy = {GIVEN, calibrate}
        notes.append(f"No energy: {why}.")
    if calibrate is not None:
        logits, fit_on = sets[GIVEN]["inside"], tuple(map(as_array, fit_on))
        held_out = calibration.held_out(*fit_on, num_classes=logits.shape[-1], **how)
        for name, rows in given.items():
            if same_examples(_unlabelled(rows), _unlabelled(fit_on[0], held_out[2])):
                raise ValueError(
                    f"out_of_distribution: fit_on holds the examples of {name}, and a calibrator is"
                    " never fitted on the examples that are scored.\nGive other examples."
                )
        apply, described = calibration.fitted(calibrate, held_out, criterion)
        sets[calibrate] = {name: apply(rows) for name, rows in sets[GIVEN].items()}
        if "energy" in wanted and not without_energy and _removes_offsets(apply, logits):
            without_energy = {calibrate}
            notes.append(f"No energy after {calibrate}: it removes the offset of each row.")
    rows, curves = [], {}
    options: dict[str, Any] = {"key": jax.random.key(seed), "level": level, "method": method}
    options |= {"num_resamples": num_resamples, "by_class": True}
    for name in outside:
        ids = None if clusters is None else _joined(clusters[0], clusters[1][name])
        for score in wanted:
            several = {m: metrics_package.named(m).with_options(score=score) for m in METRICS}
            for predictions, of in sets.items():
                if score == "energy" and predictions in without_energy:
                    continue
                both = metrics_package.in_and_out(of["inside"], of[f"outside[{name!r}]"])
                found = inference.estimates(several, *both, clusters=ids, **options)
                for metric, estimate in found.items():
                    numbers = caveats.shown(*estimate[:3], method)[:3]
                    rows.append(Detection(name, predictions, score, metric, *numbers))
                curve = metrics_package.ood_roc_curve(*both, score=score)
                curves[name, predictions, score] = jax.tree.map(np.asarray, curve)
    settings = {
        "inside": len(sets[GIVEN]["inside"]),
        "outside": {name: len(sets[GIVEN][f"outside[{name!r}]"]) for name in outside},
        **{"level": level, "interval": method, "resamples": num_resamples, "seed": seed},
        "clusters": clusters is not None,
    }
    return OutOfDistribution(settings, rows, curves, described, notes)


def _check_options(
    calibrate: Any, fit_on: Any, criterion: Any, clusters: Any, outside: Mapping[str, Any]
) -> None:
    """Raise an error for options that are incomplete or would have no effect."""
    if not isinstance(criterion, str) or isinstance(fit_on, Mapping):
        raise TypeError(
            "out_of_distribution: criterion must be one name, and fit_on must be (logits, labels)"
            " or (logits, labels, weights)."
        )
    calibration.check_request(calibrate, fit_on, None, criterion)
    if calibrate is not None and fit_on is None:
        raise ValueError("out_of_distribution: calibrate needs other examples: give fit_on.")
    of_outside = clusters[1] if isinstance(clusters, tuple | list) and len(clusters) == 2 else None
    if clusters is not None and not {*outside} <= {*(of_outside or ())}:
        raise TypeError("clusters must be (clusters of inside, {name: clusters of each outside}).")


def _unlabelled(predictions: Any, weights: Any = None) -> tuple[Any, Any, Any]:
    predictions = np.asarray(as_array(predictions))
    num_rows = math.prod(predictions.shape[:-1]) if predictions.ndim > 1 else len(predictions)
    return predictions, np.zeros(num_rows, np.int32), weights


def _normalised(logits: Logits) -> bool:
    """Check whether all rows are log-probabilities, up to the rounding of their precision."""
    rounding = float(jnp.finfo(logits.dtype).eps) * max(1.0, math.log(logits.shape[-1]))
    return bool(jnp.all(jnp.abs(_log_total(logits)) <= max(_NORMALISED, rounding)))


def _removes_offsets(apply: Callable[[Logits], Logits], logits: Logits) -> bool:
    """Check whether a calibrator gives equal results with and without the offset of each row."""
    logits = at_least_float32(logits)
    # Subtracting the maximum cannot overflow, and such calibrators begin with it.
    below = logits - jnp.max(logits, axis=-1, keepdims=True)
    if jnp.array_equal(logits, below):
        return False  # the given rows have no offsets that could be removed
    with_offsets, without = (np.asarray(_log_total(apply(rows))) for rows in (logits, below))
    return np.allclose(with_offsets, without, rtol=1e-5, atol=1e-5)


def _log_total(logits: Logits) -> jax.Array:
    return jax.nn.logsumexp(at_least_float32(logits), axis=-1)


def _joined(inside: Any, outside: Any) -> np.ndarray:
    """Number the clusters of both sets, in the order of `metrics.in_and_out`."""
    numbers = [np.unique(np.asarray(ids), return_inverse=True)[1] for ids in (inside, outside)]
    return np.concatenate([numbers[0], numbers[1] + np.max(numbers[0], initial=-1) + 1])
