"""The table of objectives, by the names that their papers use; `objective` looks them up."""

from collections.abc import Callable

from calib_jax.losses.adaptive_focal import adafocal_objective
from calib_jax.losses.batch_calibration import dca, mdca, soft_ece
from calib_jax.losses.class_adaptive_margin import class_adaptive_margin
from calib_jax.losses.class_counts import class_weighted, ldam, logit_adjusted
from calib_jax.losses.focal import cross_entropy, dual_focal, focal, inverse_focal
from calib_jax.losses.gamma_schedules import flsc531, flsc532, flsd
from calib_jax.losses.generalized_brier import adaptive_generalized_brier, brier, generalized_brier
from calib_jax.losses.kernel_calibration import esd, mmce, mmce_gra, mmce_weighted
from calib_jax.losses.margins import margin_smoothing, neighbour_margin
from calib_jax.losses.objectives import Objective, of_loss
from calib_jax.losses.recall import recall_objective, recall_precision
from calib_jax.losses.segmentation import bootstrapped, lovasz, ohem, soft_iou
from calib_jax.losses.smoothing import (
    entropy_regularized,
    focal_entropy_regularized,
    label_smoothing,
    logit_norm,
)

_FLSD53 = {"thresholds": (0.2, 0.5), "gammas": (5.0, 3.0, 3.0)}
_FLSD53_TEXT = _FLSD53 | {"thresholds": (0.19, 0.5)}  # as in the released text experiments
_FLSD532 = {"thresholds": (0.2, 0.5), "gammas": (5.0, 3.0, 2.0)}

TABLE: dict[str, Callable[..., Objective]] = {
    "adafocal": adafocal_objective,
    "bootstrapped": bootstrapped,
    "brier": of_loss(brier),
    "bsce": of_loss(generalized_brier, weighting="loss"),
    "bsce_adaptive_gra": of_loss(adaptive_generalized_brier, weighting="gradient"),
    "bsce_gra": of_loss(generalized_brier, weighting="gradient"),
    "class_adaptive_margin": class_adaptive_margin,
    "class_weighted": class_weighted,
    "cross_entropy": of_loss(cross_entropy),
    "dca": dca,
    "dfl_gra": of_loss(dual_focal, weighting="gradient", detach_runner_up=False),
    "dual_focal": of_loss(dual_focal),
    "entropy_regularized": entropy_regularized,
    "esd": esd,
    "fl_gra": of_loss(focal, weighting="gradient"),
    "flsc531": flsc531,
    "flsc532": flsc532,
    "flsd53": of_loss(flsd, **_FLSD53),
    "flsd532": of_loss(flsd, **_FLSD532),
    "flsd53_gra": of_loss(flsd, **_FLSD53, weighting="gradient"),
    "flsd53_text": of_loss(flsd, **_FLSD53_TEXT),
    "focal": of_loss(focal),
    "focal_entropy_regularized": focal_entropy_regularized,
    "inverse_focal": of_loss(inverse_focal),
    "label_smoothing": of_loss(label_smoothing),
    "ldam": ldam,
    "logit_adjusted": logit_adjusted,
    "logit_norm": of_loss(logit_norm),
    "lovasz": lovasz,
    "margin_smoothing": of_loss(margin_smoothing),
    # The mean distance of all logits below the largest is max z - mean z, the penalty of MaxSup.
    "max_suppression": of_loss(margin_smoothing, margin=0.0, class_reduction="mean"),
    "mdca": mdca,
    "mmce": mmce,
    "mmce_gra": mmce_gra,
    "mmce_weighted": mmce_weighted,
    "neighbour_margin": neighbour_margin,
    "ohem": ohem,
    "recall": recall_objective,
    "recall_precision": recall_precision,
    "soft_ece": soft_ece,
    "soft_iou": soft_iou,
}
