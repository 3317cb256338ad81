"""Dual focal loss, which also uses the largest probability below p_y: Tao et al. 2023.

Our sources give no gamma; 5 is our choice. `runner_up="below"` follows the code released with Lin
et al. 2025; their notebook uses the second largest probability ("second").
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "dual_focal", gamma=5.0, runner_up="below", detach_runner_up=False, weighting="loss"
    )
