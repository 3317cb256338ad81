"""Losses: pure functions `(logits, labels, *, options) -> [*batch]`, unreduced.

    losses.focal(logits, labels, gamma=3.0)              a function, for custom training loops
    losses.objective("adafocal")                         a loss with its state, for any loop
    losses.catalogue()                                   every objective by its paper's name

Every file of this folder is one family of losses. `released` contains the losses that only a
paper's released code defines. The public names of a new file are imported and listed below.
"""

from typing import TYPE_CHECKING, Any

from calib_jax.core.names import no_attribute
from calib_jax.losses.adaptive_focal import (
    AdaFocalState,
    adafocal,
    adafocal_rows,
    adafocal_rule,
    adafocal_update,
)
from calib_jax.losses.brier import brier
from calib_jax.losses.class_adaptive_margin import ClassMarginState
from calib_jax.losses.class_weighted import ClassWeightsState, class_weights
from calib_jax.losses.cross_entropy import cross_entropy, nll
from calib_jax.losses.dca import dca_penalty
from calib_jax.losses.dual_focal import dual_focal
from calib_jax.losses.entropy_penalty import entropy_penalty
from calib_jax.losses.esd import esd_penalty
from calib_jax.losses.focal import focal, focal_gradient_ratio, inverse_focal
from calib_jax.losses.generalized_brier import adaptive_generalized_brier, generalized_brier
from calib_jax.losses.kernel_calibration import mmce_penalty, mmce_weighted_penalty
from calib_jax.losses.label_smoothing import label_smoothing, smooth
from calib_jax.losses.ldam import LDAMState
from calib_jax.losses.logit_adjusted import LogitAdjustedState
from calib_jax.losses.logit_norm import logit_norm
from calib_jax.losses.lovasz import lovasz_penalty
from calib_jax.losses.margin_smoothing import margin_smoothing
from calib_jax.losses.mdca import mdca_penalty
from calib_jax.losses.neighbour_margin import neighbour_margin_penalty
from calib_jax.losses.objectives import (
    Clock,
    Objective,
    Progress,
    as_objective,
    catalogue,
    make_objective,
    objective,
    register,
    regularized,
)
from calib_jax.losses.recall import RecallPrecisionState, RecallState, recall
from calib_jax.losses.released import focal_of_mean as _focal_of_mean
from calib_jax.losses.released import hard_examples as _hard_examples
from calib_jax.losses.released.consistency import consistency
from calib_jax.losses.released.ece_weighted import EceWeightedState, ece_weighted
from calib_jax.losses.released.exponential import exponential_weight, exponentially_weighted
from calib_jax.losses.released.soft_iou import soft_iou_penalty
from calib_jax.losses.released.tempered import TemperedState, tempered
from calib_jax.losses.released.top_label_brier import top_label_brier
from calib_jax.losses.sample_dependent_focal import flsd, gamma_for
from calib_jax.losses.scheduled_focal import ScheduledGamma, scheduled_focal
from calib_jax.losses.soft_ece_penalty import soft_ece_penalty
from calib_jax.losses.weighting import Probabilities, Uncertainty, weighted_cross_entropy

__all__ = [
    "AdaFocalState",
    "ClassMarginState",
    "ClassWeightsState",
    "Clock",
    "EceWeightedState",
    "LDAMState",
    "LogitAdjustedState",
    "Objective",
    "Probabilities",
    "Progress",
    "RecallPrecisionState",
    "RecallState",
    "ScheduledGamma",
    "TemperedState",
    "Uncertainty",
    "adafocal",
    "adafocal_rows",
    "adafocal_rule",
    "adafocal_update",
    "adaptive_generalized_brier",
    "as_objective",
    "brier",
    "catalogue",
    "class_weights",
    "consistency",
    "cross_entropy",
    "dca_penalty",
    "dual_focal",
    "ece_weighted",
    "entropy_penalty",
    "esd_penalty",
    "exponential_weight",
    "exponentially_weighted",
    "flsd",
    "focal",
    "focal_gradient_ratio",
    "gamma_for",
    "generalized_brier",
    "inverse_focal",
    "label_smoothing",
    "logit_norm",
    "lovasz_penalty",
    "make_objective",
    "margin_smoothing",
    "mdca_penalty",
    "mmce_penalty",
    "mmce_weighted_penalty",
    "neighbour_margin_penalty",
    "nll",
    "objective",
    "recall",
    "register",
    "regularized",
    "scheduled_focal",
    "smooth",
    "soft_ece_penalty",
    "soft_iou_penalty",
    "tempered",
    "top_label_brier",
    "weighted_cross_entropy",
]

# Importing these files registers their objectives, which have no public function.
_REGISTERED = (_focal_of_mean, _hard_examples)


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


if not TYPE_CHECKING:  # type checkers see all names above and report unknown ones

    def __getattr__(name: str) -> Any:
        if name in catalogue():
            raise AttributeError(
                f"{__name__} has no function {name!r}: it is an objective,"
                f" losses.objective({name!r})."
            )
        raise no_attribute(__name__, name, __all__)
