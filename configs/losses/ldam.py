"""LDAM at the largest margin and scale of Cao et al. 2019; the mean over the batch is theirs."""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("ldam", reduction="mean", max_margin=0.5, scale=30.0)
