"""Report: compute all metrics of a set of predictions in one call.

    scored = report.score(logits, labels, calibrate="temperature", fit_on=(logits_val, labels_val))
    print(scored)                # tables; a notebook cell renders them
    scored.save("somewhere")     # report.json, .csv, .md, .html and figures

This is the only subpackage that imports others: metrics, calibrators and plots.
"""

from calib_jax.report.class_order import match_classes
from calib_jax.report.command import score_files
from calib_jax.report.out_of_distribution import Detection, OutOfDistribution, out_of_distribution
from calib_jax.report.overlap import same_examples
from calib_jax.report.pictures import pictures
from calib_jax.report.prediction_files import Predictions, read_predictions
from calib_jax.report.predictions import FLOOR, as_logits, average, probability_rows
from calib_jax.report.records import Change, Part, Row, Worst
from calib_jax.report.scoring import DEFAULT_METRICS, Report, score

__all__ = [
    "DEFAULT_METRICS",
    "FLOOR",
    "Change",
    "Detection",
    "OutOfDistribution",
    "Part",
    "Predictions",
    "Report",
    "Row",
    "Worst",
    "as_logits",
    "average",
    "match_classes",
    "out_of_distribution",
    "pictures",
    "probability_rows",
    "read_predictions",
    "same_examples",
    "score",
    "score_files",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__
