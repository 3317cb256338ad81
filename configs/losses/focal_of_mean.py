"""Focal loss of the mean cross-entropy of a batch, as released with Tian et al. 2021.

2 is the default of the released class; its configs set 1.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("focal_of_mean", reduction="mean", gamma=2.0)
