"""Report: compute all metrics of a set of predictions in one call.

    scored = report.score(logits, labels, calibrate="temperature", fit_on=(logits_val, labels_val))
    print(scored)                # tables; a notebook cell renders them
    scored.save("somewhere")     # report.json, .csv, .md, .html and figures

This is the only subpackage that imports others: metrics, inference, calibrators and plots.
"""

from calib_jax.core import checks as _checks
from calib_jax.report.command import score_files as score_files
from calib_jax.report.figures import pictures as pictures
from calib_jax.report.out_of_distribution import Detection as Detection
from calib_jax.report.out_of_distribution import OutOfDistribution as OutOfDistribution
from calib_jax.report.out_of_distribution import out_of_distribution as out_of_distribution
from calib_jax.report.predictions import FLOOR as FLOOR
from calib_jax.report.predictions import Predictions as Predictions
from calib_jax.report.predictions import as_logits as as_logits
from calib_jax.report.predictions import average as average
from calib_jax.report.predictions import match_classes as match_classes
from calib_jax.report.predictions import probability_rows as probability_rows
from calib_jax.report.read import read_predictions as read_predictions
from calib_jax.report.results import Change as Change
from calib_jax.report.results import Part as Part
from calib_jax.report.results import Report as Report
from calib_jax.report.results import Row as Row
from calib_jax.report.score import ANSWER_METRICS as ANSWER_METRICS
from calib_jax.report.score import DEFAULT_METRICS as DEFAULT_METRICS
from calib_jax.report.score import score as score

_checks.export(__name__)
