"""Inverse focal loss, (1 + p_y)^gamma times cross-entropy: Wang et al. 2021.

It makes a model surer of itself; AdaFocal switches to it where a model is too timid. No source here
fixes gamma for its use alone: 1 is ours.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("inverse_focal", gamma=1.0, weighting="loss")
