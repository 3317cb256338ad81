"""Dual focal loss weighted by an exponential of itself, held constant.

Released with Lin et al. 2025. The temperature, at which the loss is clipped, is the default of
their command line. No source here fixes gamma: 5 is ours, as in `dual_focal`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("dual_focal_exp", gamma=5.0, runner_up="below", temperature=1.0, form="scaled")
