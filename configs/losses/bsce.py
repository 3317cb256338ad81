"""Cross-entropy times a generalised Brier score, differentiated as a whole: Lin et al. 2025.

gamma = beta = 2, the Brier score itself, is the best published setting. Their only script for this
loss (Tiny-ImageNet) uses gamma 4. With beta 1 the loss is focal loss times 2^gamma.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("bsce", gamma=2.0, beta=2.0, reading="norm")
