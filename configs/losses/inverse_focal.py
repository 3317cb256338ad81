"""Inverse focal loss, (1 + p_y)^gamma times cross-entropy: Wang et al. 2021.

It increases a model's confidence; AdaFocal switches to it where a model is underconfident. Our
sources give no gamma for this loss alone; 1 is our choice.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("inverse_focal", gamma=1.0, weighting="loss")
