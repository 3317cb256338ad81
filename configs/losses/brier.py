"""The Brier score of the softmax as a loss, one of the baselines of Mukhoti et al. 2020.

Their code takes the mean over the batch, unlike for their other losses; Lin et al. 2025 sum it.
Their recipe for this loss has 550 epochs for the wide ResNet on CIFAR-10, 430 for ResNet-110 on
CIFAR-100, and learning rate 0.035 on Tiny-ImageNet.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("brier", reduction="mean")
