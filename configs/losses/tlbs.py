"""Cross-entropy whose gradient is weighted by the top-label Brier score.

Released with Lin et al. 2025. Our sources give no gamma; 2, the square, is our choice.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("tlbs", gamma=2.0, weighting="gradient")
