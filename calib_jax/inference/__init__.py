"""Inference: intervals, tests and comparisons of metrics, for one model, two models or groups.

    inference.estimates({...}, logits, labels, key=key)          values with intervals
    inference.bootstrap(metrics.ece, logits, labels, key=key)    resampled values
    inference.Evaluation(logits, labels)                         validated once, for many functions
    inference.noise_bound(metrics.ece, logits, labels, key=key)  is an ECE larger than noise?
    inference.calibration_test(name, logits, labels, key=key)    is the model calibrated at all?
    inference.compare_calibration(logits_a, logits_b, labels)    which model is calibrated better?
    inference.ce2_difference(first, second)                      the same over several seeds
    inference.group_errors, class_errors                         which groups are miscalibrated?
    inference.ranks({name: logits, ...}, labels)                 which of several models differ?
    inference.rows_needed(logits, labels, ece=0.02)              how many labels are needed?
    inference.best_threshold, guaranteed_coverage                decisions with guarantees

The classes of results stand in the files of the functions that return them.
"""

from calib_jax.core import checks as _checks
from calib_jax.inference.bootstrap import bootstrap as bootstrap
from calib_jax.inference.bootstrap import difference as difference
from calib_jax.inference.bootstrap import interval as interval
from calib_jax.inference.bootstrap import paired_bootstrap as paired_bootstrap
from calib_jax.inference.calibration import calibration_test as calibration_test
from calib_jax.inference.calibration import calibration_tests as calibration_tests
from calib_jax.inference.calibration import class_errors as class_errors
from calib_jax.inference.calibration import group_errors as group_errors
from calib_jax.inference.ce2 import Value as Value
from calib_jax.inference.ce2 import ce2 as ce2
from calib_jax.inference.ce2 import ce2_difference as ce2_difference
from calib_jax.inference.ce2 import mean_over_seeds as mean_over_seeds
from calib_jax.inference.ce2 import nested as nested
from calib_jax.inference.ce2 import predict_loss as predict_loss
from calib_jax.inference.compare import BY_SQUARED_ERROR as BY_SQUARED_ERROR
from calib_jax.inference.compare import MetricDifference as MetricDifference
from calib_jax.inference.compare import compare_ece as compare_ece
from calib_jax.inference.compare import compare_metrics as compare_metrics
from calib_jax.inference.compare import flips as flips
from calib_jax.inference.compare import mcnemar as mcnemar
from calib_jax.inference.decisions import best_threshold as best_threshold
from calib_jax.inference.decisions import decision_calibration as decision_calibration
from calib_jax.inference.decisions import guaranteed_coverage as guaranteed_coverage
from calib_jax.inference.evaluation import Evaluation as Evaluation
from calib_jax.inference.image_stream import ImageStream as ImageStream
from calib_jax.inference.noise_bound import Estimate as Estimate
from calib_jax.inference.noise_bound import estimates as estimates
from calib_jax.inference.noise_bound import has_noise_bound as has_noise_bound
from calib_jax.inference.noise_bound import noise_bound as noise_bound
from calib_jax.inference.p_values import holm as holm
from calib_jax.inference.p_values import paired_test as paired_test
from calib_jax.inference.planning import ranks as ranks
from calib_jax.inference.planning import rows_needed as rows_needed
from calib_jax.inference.squared_error import compare_calibration as compare_calibration
from calib_jax.inference.squared_error import debiased_squared_error as debiased_squared_error

_checks.export(__name__)
