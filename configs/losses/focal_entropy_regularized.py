"""Focal loss minus the entropy of the prediction: Pereyra et al. 2017 on Lin et al. 2017.

Like `entropy_regularized`, with focal loss instead of cross-entropy; `focal_gamma` 3 is that of
FL-3.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "focal_entropy_regularized", reduction="mean", focal_gamma=3.0, scale=1.0, gamma=0.0
    )
