"""Label smoothing, as in Mukhoti et al. 2020 (LS-0.05): alpha / (K - 1) on every wrong class.

The scripts use alpha 0.05 and 0.1. Szegedy et al. 2016 and optax spread alpha over all classes,
including the true one: their alpha corresponds to alpha (K - 1) / K here.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("label_smoothing", alpha=0.05, spread="others")
