"""Cross-entropy whose gradient has the weight of focal loss: Lin et al. 2025.

Our sources give no gamma; 3 is that of FL-3.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("fl_gra", gamma=3.0)
