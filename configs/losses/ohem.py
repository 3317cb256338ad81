"""Cross-entropy of the hardest 70 % of a batch: Shrivastava et al. 2016.

0.7 is the threshold in the configs of the code released with Tian et al. 2021, which selects pixels
by rows of an image instead.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("ohem", reduction="mean", fraction=0.7)
