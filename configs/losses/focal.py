"""Focal loss with one gamma (FL-3): Lin et al. 2017, for calibration Mukhoti et al. 2020.

They try gamma 1, 2 and 3; 3 is the best.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("focal", gamma=3.0, weighting="loss")
