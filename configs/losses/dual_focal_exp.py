"""Dual focal loss weighted by a detached exponential of itself.

Released with Lin et al. 2025. The temperature, which also clips the loss, is the default of
their command line. Our sources give no gamma; 5 is our choice, as in `dual_focal`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("dual_focal_exp", gamma=5.0, runner_up="below", temperature=1.0, form="scaled")
