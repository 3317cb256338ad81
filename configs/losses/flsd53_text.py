"""FLSD-53 as in the text experiments released with Mukhoti et al. 2020: threshold 0.19, not 0.2."""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("flsd53_text", weighting="loss")
