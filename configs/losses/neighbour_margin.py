"""NACL, the distance of a pixel's logits from the labels around it: Murugesan et al. 2023.

The values are the defaults of MONAI's NACLLoss. Labels have the shape [images, height, width].
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("neighbour_margin", reduction="mean", alpha=0.1, kernel_size=3, distance="l1")
