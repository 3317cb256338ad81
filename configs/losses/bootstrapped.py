"""Cross-entropy of the 512 hardest examples of a batch: Wu et al. 2016.

They keep 512 pixels of a crop, that is per image: `--config.loss.options.per_image`, which needs an
axis of pixels.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("bootstrapped", reduction="mean", count=512, per_image=False)
