"""Cross-entropy whose gradient is weighted by the MMCE of the batch.

Released with Lin et al. 2025. Their code multiplies the mean over a batch of N by N, so it sums.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("mmce_gra", bandwidth=0.4)
