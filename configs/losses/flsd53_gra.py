"""Cross-entropy whose gradient has the weight of FLSD-53: released with Lin et al. 2025."""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("flsd53_gra")
