"""Losses: pure functions `(logits, labels, *, options) -> [*batch]`, unreduced.

    losses.focal(logits, labels, gamma=3.0)              a function, for custom training loops
    losses.objective("adafocal")                         a loss with its state, for any loop
    losses.catalogue()                                   every objective by its paper's name

Every file of this folder is one family of losses. `released` contains the losses that only a
paper's released code defines. The public names of a new file are imported below.
"""

from calib_jax.core import names as _names
from calib_jax.losses.adaptive_focal import AdaFocalState as AdaFocalState
from calib_jax.losses.adaptive_focal import adafocal as adafocal
from calib_jax.losses.adaptive_focal import adafocal_rows as adafocal_rows
from calib_jax.losses.adaptive_focal import adafocal_rule as adafocal_rule
from calib_jax.losses.adaptive_focal import adafocal_update as adafocal_update
from calib_jax.losses.brier import brier as brier
from calib_jax.losses.class_adaptive_margin import ClassMarginState as ClassMarginState
from calib_jax.losses.class_weighted import ClassWeightsState as ClassWeightsState
from calib_jax.losses.class_weighted import class_weights as class_weights
from calib_jax.losses.cross_entropy import cross_entropy as cross_entropy
from calib_jax.losses.cross_entropy import nll as nll
from calib_jax.losses.dca import dca_penalty as dca_penalty
from calib_jax.losses.dual_focal import dual_focal as dual_focal
from calib_jax.losses.entropy_penalty import entropy_penalty as entropy_penalty
from calib_jax.losses.esd import esd_penalty as esd_penalty
from calib_jax.losses.focal import focal as focal
from calib_jax.losses.focal import focal_gradient_ratio as focal_gradient_ratio
from calib_jax.losses.focal import inverse_focal as inverse_focal
from calib_jax.losses.generalized_brier import (
    adaptive_generalized_brier as adaptive_generalized_brier,
)
from calib_jax.losses.generalized_brier import generalized_brier as generalized_brier
from calib_jax.losses.kernel_calibration import mmce_penalty as mmce_penalty
from calib_jax.losses.kernel_calibration import mmce_weighted_penalty as mmce_weighted_penalty
from calib_jax.losses.label_smoothing import label_smoothing as label_smoothing
from calib_jax.losses.label_smoothing import smooth as smooth
from calib_jax.losses.ldam import LDAMState as LDAMState
from calib_jax.losses.logit_adjusted import LogitAdjustedState as LogitAdjustedState
from calib_jax.losses.logit_norm import logit_norm as logit_norm
from calib_jax.losses.lovasz import lovasz_penalty as lovasz_penalty
from calib_jax.losses.margin_smoothing import margin_smoothing as margin_smoothing
from calib_jax.losses.mdca import mdca_penalty as mdca_penalty
from calib_jax.losses.neighbour_margin import neighbour_margin_penalty as neighbour_margin_penalty
from calib_jax.losses.objectives import Clock as Clock
from calib_jax.losses.objectives import Objective as Objective
from calib_jax.losses.objectives import Progress as Progress
from calib_jax.losses.objectives import as_objective as as_objective
from calib_jax.losses.objectives import catalogue as catalogue
from calib_jax.losses.objectives import make_objective as make_objective
from calib_jax.losses.objectives import objective as objective
from calib_jax.losses.objectives import register as register
from calib_jax.losses.objectives import regularized as regularized
from calib_jax.losses.population import MatchedFocal as MatchedFocal
from calib_jax.losses.population import matched_focal as matched_focal
from calib_jax.losses.population import population_minimizer as population_minimizer
from calib_jax.losses.recall import RecallPrecisionState as RecallPrecisionState
from calib_jax.losses.recall import RecallState as RecallState
from calib_jax.losses.recall import recall as recall
from calib_jax.losses.released import focal_of_mean as _focal_of_mean
from calib_jax.losses.released import hard_examples as _hard_examples
from calib_jax.losses.released.consistency import consistency as consistency
from calib_jax.losses.released.ece_weighted import EceWeightedState as EceWeightedState
from calib_jax.losses.released.ece_weighted import ece_weighted as ece_weighted
from calib_jax.losses.released.exponential import exponential_weight as exponential_weight
from calib_jax.losses.released.exponential import exponentially_weighted as exponentially_weighted
from calib_jax.losses.released.soft_iou import soft_iou_penalty as soft_iou_penalty
from calib_jax.losses.released.tempered import TemperedState as TemperedState
from calib_jax.losses.released.tempered import tempered as tempered
from calib_jax.losses.released.top_label_brier import top_label_brier as top_label_brier
from calib_jax.losses.sample_dependent_focal import flsd as flsd
from calib_jax.losses.sample_dependent_focal import gamma_for as gamma_for
from calib_jax.losses.scheduled_focal import ScheduledGamma as ScheduledGamma
from calib_jax.losses.scheduled_focal import scheduled_focal as scheduled_focal
from calib_jax.losses.soft_ece_penalty import soft_ece_penalty as soft_ece_penalty
from calib_jax.losses.weighting import Probabilities as Probabilities
from calib_jax.losses.weighting import Uncertainty as Uncertainty
from calib_jax.losses.weighting import weighted_cross_entropy as weighted_cross_entropy

# Importing these files registers their objectives, which have no public function.
_REGISTERED = (_focal_of_mean, _hard_examples)


def _advice(name: str) -> str:
    """Return the end of the error for an objective that has no public function."""
    if name not in catalogue():
        return ""
    return f"function {name!r}: it is an objective, losses.objective({name!r})."


_names.export(__name__, advice=_advice)
