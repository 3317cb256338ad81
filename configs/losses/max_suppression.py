"""MaxSup, cross-entropy plus the distance of the largest logit from the mean: Zhou et al. 2025.

The released code raises alpha linearly from 0.1 to 0.2 during training; this fragment keeps 0.1.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("max_suppression", reduction="mean", alpha=0.1)
