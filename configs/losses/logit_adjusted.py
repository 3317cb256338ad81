"""Logit adjustment of Menon et al. 2021, at their value of tau; the mean over the batch is ours."""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("logit_adjusted", reduction="mean", tau=1.0)
