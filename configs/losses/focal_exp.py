"""Focal loss weighted by a detached exponential of itself.

Released with Lin et al. 2025. The temperature, which also clips the loss, is the default of
their command line. Our sources give no gamma; 3 is that of FL-3.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("focal_exp", gamma=3.0, temperature=1.0, form="scaled")
