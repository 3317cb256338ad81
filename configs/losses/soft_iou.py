"""Soft intersection over union alone: Rahman and Wang 2016.

The code released with Tian et al. 2021 computes it per image, which needs an axis of pixels:
`--config.loss.options.per_image`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "soft_iou", reduction="mean", scale=1.0, cross_entropy_scale=0.0, per_image=False
    )
