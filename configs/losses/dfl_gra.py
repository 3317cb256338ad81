"""Cross-entropy whose gradient has the weight of dual focal loss: Lin et al. 2025.

The released class holds only the runner-up constant, which is `dual_focal` with
`detach_runner_up=True`. No source here fixes gamma: 5 is ours, as in `dual_focal`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("dfl_gra", gamma=5.0, runner_up="below")
