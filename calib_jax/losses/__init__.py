"""Losses: pure functions `(logits, labels, *, options) -> [*batch]`, unreduced.

    losses.focal(logits, labels, gamma=3.0)              a function, for custom training loops
    losses.objective("adafocal")                         a loss with its state, for any loop
    losses.catalogue()                                   every objective by its paper's name

Every file of this folder is one family of losses. The public names of a new file are imported
below, and its objectives stand in `table.py`.
"""

from calib_jax.core import checks as _checks
from calib_jax.core.types import Progress as Progress
from calib_jax.losses.adaptive_focal import AdaFocalState as AdaFocalState
from calib_jax.losses.adaptive_focal import adafocal as adafocal
from calib_jax.losses.adaptive_focal import adafocal_rows as adafocal_rows
from calib_jax.losses.adaptive_focal import adafocal_rule as adafocal_rule
from calib_jax.losses.adaptive_focal import adafocal_update as adafocal_update
from calib_jax.losses.batch_calibration import dca_penalty as dca_penalty
from calib_jax.losses.batch_calibration import mdca_penalty as mdca_penalty
from calib_jax.losses.batch_calibration import soft_ece_penalty as soft_ece_penalty
from calib_jax.losses.class_adaptive_margin import ClassMarginState as ClassMarginState
from calib_jax.losses.class_counts import ClassWeightsState as ClassWeightsState
from calib_jax.losses.class_counts import LDAMState as LDAMState
from calib_jax.losses.class_counts import LogitAdjustedState as LogitAdjustedState
from calib_jax.losses.class_counts import class_weights as class_weights
from calib_jax.losses.focal import Probabilities as Probabilities
from calib_jax.losses.focal import Uncertainty as Uncertainty
from calib_jax.losses.focal import cross_entropy as cross_entropy
from calib_jax.losses.focal import dual_focal as dual_focal
from calib_jax.losses.focal import focal as focal
from calib_jax.losses.focal import focal_gradient_ratio as focal_gradient_ratio
from calib_jax.losses.focal import inverse_focal as inverse_focal
from calib_jax.losses.focal import nll as nll
from calib_jax.losses.focal import weighted_cross_entropy as weighted_cross_entropy
from calib_jax.losses.gamma_schedules import MatchedFocal as MatchedFocal
from calib_jax.losses.gamma_schedules import ScheduledGamma as ScheduledGamma
from calib_jax.losses.gamma_schedules import flsd as flsd
from calib_jax.losses.gamma_schedules import gamma_for as gamma_for
from calib_jax.losses.gamma_schedules import matched_focal as matched_focal
from calib_jax.losses.gamma_schedules import population_minimizer as population_minimizer
from calib_jax.losses.gamma_schedules import scheduled_focal as scheduled_focal
from calib_jax.losses.generalized_brier import (
    adaptive_generalized_brier as adaptive_generalized_brier,
)
from calib_jax.losses.generalized_brier import brier as brier
from calib_jax.losses.generalized_brier import generalized_brier as generalized_brier
from calib_jax.losses.kernel_calibration import esd_penalty as esd_penalty
from calib_jax.losses.kernel_calibration import mmce_penalty as mmce_penalty
from calib_jax.losses.kernel_calibration import mmce_weighted_penalty as mmce_weighted_penalty
from calib_jax.losses.margins import margin_smoothing as margin_smoothing
from calib_jax.losses.margins import neighbour_margin_penalty as neighbour_margin_penalty
from calib_jax.losses.objectives import OBJECTIVES as OBJECTIVES
from calib_jax.losses.objectives import Clock as Clock
from calib_jax.losses.objectives import Objective as Objective
from calib_jax.losses.objectives import as_objective as as_objective
from calib_jax.losses.objectives import catalogue as catalogue
from calib_jax.losses.objectives import make_objective as make_objective
from calib_jax.losses.objectives import objective as objective
from calib_jax.losses.objectives import regularized as regularized
from calib_jax.losses.recall import RecallPrecisionState as RecallPrecisionState
from calib_jax.losses.recall import RecallState as RecallState
from calib_jax.losses.recall import recall as recall
from calib_jax.losses.segmentation import lovasz_penalty as lovasz_penalty
from calib_jax.losses.segmentation import soft_iou_penalty as soft_iou_penalty
from calib_jax.losses.smoothing import entropy_penalty as entropy_penalty
from calib_jax.losses.smoothing import label_smoothing as label_smoothing
from calib_jax.losses.smoothing import logit_norm as logit_norm
from calib_jax.losses.smoothing import smooth as smooth
from calib_jax.losses.table import TABLE as _TABLE

OBJECTIVES.update(_TABLE)


def _advice(name: str) -> str:
    """Return the end of the error for an objective that has no public function."""
    if name not in OBJECTIVES:
        return ""
    return f"function {name!r}: it is an objective, losses.objective({name!r})."


# States are made by `init`, and types are needed where a state or a score is written by hand.
_TYPES = {
    *("AdaFocalState", "ClassMarginState", "ClassWeightsState", "LDAMState", "LogitAdjustedState"),
    *("RecallPrecisionState", "RecallState", "ScheduledGamma"),
    *("Clock", "Probabilities", "Uncertainty"),
}
_checks.export(__name__, advice=_advice, unlisted=_TYPES)
