"""Cross-entropy whose gradient is weighted by a generalised Brier score: Lin et al. 2025.

The paper's method. gamma = beta = 2, the Brier score itself, is the best published setting; the
defaults of their command line are 1 and 1.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("bsce_gra", gamma=2.0, beta=2.0, reading="norm")
