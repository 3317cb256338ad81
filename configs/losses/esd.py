"""ESD, an unbiased squared gap over pairs of the batch: Yoon et al. 2023.

The scale is that of the released script for ImageNet-100, which holds out a tenth of the training
set for the penalty; here the penalty and cross-entropy see the same batch.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("esd", reduction="mean", scale=4.0)
