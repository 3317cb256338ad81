"""MDCA, the gap between mean probability and share of each class: Hebbalaguppe et al. 2022.

Scale and reduction are those of the released CIFAR-10 scripts for "NLL+MDCA". Their "FL+MDCA" has
`focal_gamma=1.0`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("mdca", reduction="mean", scale=1.0, focal_gamma=0.0)
