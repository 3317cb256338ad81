"""Out-of-distribution detection by uncertainty scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import inference, metrics, plots
from calib_jax.core import checks, texts
from calib_jax.core.checks import short_repr
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.types import Logits
from calib_jax.report import calibrate as calibration
from calib_jax.report import caveats, render
from calib_jax.report.caveats import GIVEN
from calib_jax.report.figures import file_names, literal
from calib_jax.report.predictions import Predictions, counted, on_grid
from calib_jax.report.results import Number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = ("entropy", "max_confidence", "energy")
METRICS = ("ood_auroc", "ood_aupr", "ood_fpr95")


@dataclasses.dataclass(frozen=True)
class Detection(Number):
    """A detection metric, "ood_auroc", "ood_aupr" or "ood_fpr95", for one outer set.

    Attributes:
      outside: the name of the set.
      predictions: "as given", or the calibrator's name.
      score: "entropy", "max_confidence" or "energy".
    """

    outside: str
    predictions: str
    score: str


@dataclasses.dataclass(frozen=True)
class OutOfDistribution:
    """The results of `out_of_distribution`.

    Attributes:
      settings: numbers of examples, level, resamples, seed.
      rows: the metrics.
      curves: the ROC curves, by set, predictions and score.
      calibrator: name and parameters of the calibrator, and data of the fit; empty without one.
      notes: why a score was left out, and which scored examples the calibrator has seen.
    """

    settings: dict[str, Any]
    rows: list[Detection]
    curves: dict[tuple[str, str, str], Any]
    calibrator: dict[str, Any]
    notes: list[str] = dataclasses.field(default_factory=list)

    __repr__ = short_repr

    def value(self, outside: str, score: str, metric: str, predictions: str = GIVEN) -> float:
        """Return the value of one metric."""
        found = {(r.outside, r.score, r.metric, r.predictions): r.value for r in self.rows}
        return found[outside, score, metric, predictions]

    def __str__(self) -> str:
        return render.as_text(self._page())

    def _repr_markdown_(self) -> str:
        return render.as_markdown(self._page())

    def save(self, folder: Any) -> list[str]:
        """Save ood.json, .csv, .md, .html and a ROC figure for each set; return the file names."""
        page, cells = self._page(self.pictures()), [vars(row) for row in self.rows]
        record = {"settings": self.settings, "calibrator": self.calibrator, "metrics": cells}
        record["notes"] = page.notes
        lines = texts.csv_lines(map(texts.in_csv, cells), [*cells[0]])
        return render.save(folder, "ood", page, {"ood.csv": lines}, record)

    def pictures(self) -> dict[str, Figure]:
        """Draw the ROC curves of each set: one per score, before and after calibration."""
        figures, settings = {}, self.settings
        for outside, name in file_names(settings["outside"]).items():
            of = [row for row in self.rows if (row.outside, row.metric) == (outside, METRICS[0])]
            areas = {literal(f"{row.score}, {row.predictions}"): row for row in of}
            keys = {title: (outside, row.predictions, row.score) for title, row in areas.items()}
            curves = {title: self.curves[key] for title, key in keys.items()}
            figures[f"roc_{name}"] = plots.roc(
                {title: curve.false_positive_rate for title, curve in curves.items()},
                {title: curve.true_positive_rate for title, curve in curves.items()},
                auroc={k: row.value if caveats.is_alone(row) else row for k, row in areas.items()},
                title=f"{literal(outside)} (n = {settings['outside'][outside]:,}) against the test"
                f" set (n = {settings['inside']:,})",
                level=settings["level"],
                width=5.2,
            )
        return figures

    def _page(self, figures: Mapping[str, Figure] | None = None) -> render.Page:
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
        table = [["out of distribution", "score", "predictions", *METRICS], *rows.values()]
        alone = (row.metric for row in self.rows if caveats.is_alone(row))
        marked = texts.reasons((row.value, row.low, row.high) for row in self.rows)
        return render.Page(
            title="Out-of-distribution detection",
            head=head,
            facts={"in distribution (n)": settings["inside"], "seed": settings["seed"]},
            sections=[render.Table("Out of distribution", table)],
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
    floor: float | None = None,
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
      floor: smaller probabilities are raised to this value; by default as in `score`, if those of
        all sets are rounded alike.

    >>> from calib_jax import report
    >>> sure = 4.0 * np.eye(3)[np.arange(200) % 3]
    >>> detections = report.out_of_distribution(sure, {"noise": sure[:50] / 2}, num_resamples=20)
    >>> round(detections.value("noise", "entropy", "ood_auroc"), 6)
    1.0
    """
    wanted = SCORES if scores is None else tuple(scores)
    checks.seed(seed)
    calibration.requested(calibrate, criterion, fit_on=fit_on)
    if not isinstance(outside, Mapping) or not outside or not wanted:
        raise ValueError("out_of_distribution: outside must map names to logits, and is empty.")
    if clusters is not None and not (len(clusters) == 2 and {*outside} <= {*clusters[1]}):
        raise TypeError("clusters must be (clusters of inside, {name: clusters of each outside}).")
    named = {"inside": inside} | {f"outside[{name!r}]": rows for name, rows in outside.items()}
    sizes = [max(2, [2, *np.shape(rows)[1:]][-1]) for rows in named.values()]
    if len({*sizes}) > 1:
        raise ValueError(f"out_of_distribution: {', '.join(named)} have {sizes} classes, not one.")
    described, notes = dict[str, Any](), list[str]()
    if probabilities and floor is None:  # one floor of all sets, which are compared
        every = Predictions(np.concatenate([*named.values()]), (), kind="probabilities")
        floor, notes = every.floor, [on_grid(every)]
    how: dict[str, Any] = {"kind": "probabilities" if probabilities else "logits", "least": floor}
    given = {name: Predictions(rows, (), **how).values(name) for name, rows in named.items()}
    ways: dict[str, Callable[[Logits], Logits]] = {GIVEN: jnp.asarray}
    if calibrate:
        of_fit = Predictions(*fit_on)._replace(**how)
        held_out = calibration.evidence(of_fit, of_fit, given["inside"])
        of_fit = of_fit._replace(logits=held_out[0], labels=np.zeros(len(held_out[0])))
        for name, logits in given.items():
            scored = Predictions(logits, np.zeros(len(logits)))
            notes.append(calibration.on_shared(scored, of_fit._replace(file=f"fit_on ({name})")))
        ways[calibrate], described = calibration.fitted(calibrate, criterion, held_out)
    tested, each = ways if "energy" in wanted else {}, given.values()
    without_energy = [way for way in tested if any(_removes_offsets(ways[way], z) for z in each)]
    why = "it needs the offset of each row, which log-probabilities and some calibrators lack"
    if GIVEN in without_energy and scores is not None:
        raise ValueError(f"out_of_distribution: no score energy of these rows: {why}.")
    notes += caveats.note(f"No energy of the predictions {{}}: {why}.", without_energy)
    rows, curves = [], {}
    options: dict[str, Any] = {"key": jax.random.key(seed), "level": level, "method": method}
    options |= {"num_resamples": num_resamples, "by_class": True}
    sets = {way: [*map(apply, given.values())] for way, apply in ways.items()}
    for place, name in enumerate(outside, 1):
        ids = None
        if clusters is not None:
            pair = clusters[0], clusters[1][name]
            inner, outer = (np.unique(each, return_inverse=True)[1] for each in pair)
            ids = np.concatenate([inner, outer + len(inner)])  # those of both sets differ
        for score in wanted:
            several = {m: metrics.named(m).with_options(score=score) for m in METRICS}
            for predictions, of in sets.items():
                if score == "energy" and predictions in without_energy:
                    continue
                both = metrics.in_and_out(of[0], of[place])
                found = inference.estimates(several, *both, clusters=ids, **options)
                for metric, estimate in found.items():
                    numbers = caveats.shown(*estimate[:3], method)[:3]
                    rows.append(Detection(metric, *numbers, name, predictions, score))
                curve = metrics.ood_roc_curve(*both, score=score)
                curves[name, predictions, score] = jax.tree.map(np.asarray, curve)
    sizes = [*map(len, given.values())]
    settings = {
        "inside": sizes[0],
        "outside": dict(zip(outside, sizes[1:], strict=True)),
        **{"level": level, "interval": method, "resamples": num_resamples, "seed": seed},
        "clusters": clusters is not None,
    }
    return OutOfDistribution(settings, rows, curves, described, [*filter(None, notes)])


def _removes_offsets(apply: Callable[[Logits], Logits], logits: Logits) -> bool:
    """Check whether the result of a function does not depend on the offset of each row.

    The identity removes offsets from log-probabilities, which have none.
    """
    # The logsumexp of log-probabilities is 0 up to the rounding of their precision.
    rounding = float(jnp.finfo(logits.dtype).eps) * max(1.0, math.log(logits.shape[-1]))
    logits = at_least_float32(logits)
    both = logits, jax.nn.log_softmax(logits)
    with_offsets, without = (jax.nn.logsumexp(apply(rows), axis=-1) for rows in both)
    return np.allclose(with_offsets, without, rtol=1e-5, atol=max(1e-3, rounding))
