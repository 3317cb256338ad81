"""Class-adaptive margins with multipliers that follow validation: Liu et al. 2023.

The values are those of the released config for "aug_lagrangian_class"; margin 10 is that of the
released commands for Tiny-ImageNet and ImageNet-LT, where the config has 20.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "class_adaptive_margin",
        reduction="mean",
        margin=10.0,
        penalty="phr",
        multiplier_min=1e-6,
        multiplier_max=1e6,
        rho=1.0,
        rho_max=10.0,
        rho_growth=1.2,
        rho_step=10,
        improvement=0.9,
    )
