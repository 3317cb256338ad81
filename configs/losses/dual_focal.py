"""Dual focal loss, which also looks at the largest probability below p_y: Tao et al. 2023.

No source here fixes gamma: 5 is ours. `runner_up="below"` is how the code released with Lin et al.
2025 reads it; a notebook of theirs takes the second largest probability ("second").
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "dual_focal", gamma=5.0, runner_up="below", detach_runner_up=False, weighting="loss"
    )
