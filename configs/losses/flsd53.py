"""Focal loss with a sample-dependent gamma (FLSD-53): Mukhoti et al. 2020.

gamma is 5 where p_y < 0.2 and 3 elsewhere. The threshold is that of the released vision code; the
text code uses 0.19 (`flsd53_text`).
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("flsd53", weighting="loss")
