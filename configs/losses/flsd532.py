"""Focal loss with a sample-dependent gamma (FLSD-532): Mukhoti et al. 2020.

gamma is 5 where p_y < 0.2, 3 up to 0.5 and 2 above. The released scripts call it FLSD-52.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("flsd532", weighting="loss")
