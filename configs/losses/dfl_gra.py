"""Cross-entropy whose gradient has the weight of dual focal loss: Lin et al. 2025.

The released class detaches only the runner-up, which is `dual_focal` with
`detach_runner_up=True`. Our sources give no gamma; 5 is our choice, as in `dual_focal`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("dfl_gra", gamma=5.0, runner_up="below")
