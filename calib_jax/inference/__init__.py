"""Inference: intervals, tests and comparisons of metrics, for one model, two models or groups.

    inference.estimates({...}, logits, labels, key=key)          values with intervals
    inference.bootstrap(metrics.ece, logits, labels, key=key)    resampled values
    inference.Evaluation(logits, labels)                         validated once, for many functions
    inference.noise_bound(metrics.ece, logits, labels, key=key)  is an ECE larger than noise?
    inference.calibration_test(name, logits, labels, key=key)    is the model calibrated at all?
    inference.compare_calibration(logits_a, logits_b, labels)    which model is calibrated better?
    inference.group_errors, worst_groups                         which groups are miscalibrated?
    inference.best_threshold, guaranteed_coverage                decisions with guarantees

Each folder answers one kind of question: resamples, bounds, tests, pairs, groups, decisions.
"""

from typing import TYPE_CHECKING, Any

from calib_jax.core.names import no_attribute
from calib_jax.inference.bounds.noise_bound import NoiseBound, has_noise_bound, noise_bound
from calib_jax.inference.decisions.costs import (
    BestThreshold,
    DecisionCost,
    best_threshold,
    decision_calibration,
)
from calib_jax.inference.decisions.guaranteed_coverage import (
    GuaranteedCoverage,
    guaranteed_coverage,
)
from calib_jax.inference.evaluation import Evaluation
from calib_jax.inference.groups.errors import PartError, class_errors, group_errors
from calib_jax.inference.groups.worst_groups import WorstGroup, worst_groups
from calib_jax.inference.normal import NormalTest, paired_test
from calib_jax.inference.pairs.compare_calibration import CalibrationDifference, compare_calibration
from calib_jax.inference.pairs.compare_ece import EceDifference, compare_ece
from calib_jax.inference.pairs.compare_metrics import (
    BY_SQUARED_ERROR,
    MetricDifference,
    compare_metrics,
)
from calib_jax.inference.pairs.compare_refinement import RefinementDifference, compare_refinement
from calib_jax.inference.pairs.compare_scores import ScoreDifference, compare_scores
from calib_jax.inference.pairs.compare_temperature import TemperatureDifference, compare_temperature
from calib_jax.inference.pairs.equivalence import Equivalence, equivalence
from calib_jax.inference.pairs.flips import Flips, McNemar, flips, mcnemar
from calib_jax.inference.resamples.bootstrap import (
    Difference,
    Estimate,
    Interval,
    bootstrap,
    difference,
    estimates,
    interval,
    paired_bootstrap,
)
from calib_jax.inference.resamples.image_stream import ImageStream
from calib_jax.inference.squared_error import SquaredError, debiased_squared_error
from calib_jax.inference.tests import skce as _skce
from calib_jax.inference.tests import t_cal as _t_cal
from calib_jax.inference.tests.calibration import (
    CalibrationTest,
    calibration_test,
    calibration_tests,
)
from calib_jax.inference.tests.holm import holm

__all__ = [
    "BY_SQUARED_ERROR",
    "BestThreshold",
    "CalibrationDifference",
    "CalibrationTest",
    "DecisionCost",
    "Difference",
    "EceDifference",
    "Equivalence",
    "Estimate",
    "Evaluation",
    "Flips",
    "GuaranteedCoverage",
    "ImageStream",
    "Interval",
    "McNemar",
    "MetricDifference",
    "NoiseBound",
    "NormalTest",
    "PartError",
    "RefinementDifference",
    "ScoreDifference",
    "SquaredError",
    "TemperatureDifference",
    "WorstGroup",
    "best_threshold",
    "bootstrap",
    "calibration_test",
    "calibration_tests",
    "class_errors",
    "compare_calibration",
    "compare_ece",
    "compare_metrics",
    "compare_refinement",
    "compare_scores",
    "compare_temperature",
    "debiased_squared_error",
    "decision_calibration",
    "difference",
    "equivalence",
    "estimates",
    "flips",
    "group_errors",
    "guaranteed_coverage",
    "has_noise_bound",
    "holm",
    "interval",
    "mcnemar",
    "noise_bound",
    "paired_bootstrap",
    "paired_test",
    "worst_groups",
]

# Importing these files registers their tests.
_REGISTERED = (_skce, _t_cal)


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


if not TYPE_CHECKING:  # type checkers see all names above and report unknown ones

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
