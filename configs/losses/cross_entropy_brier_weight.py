"""Cross-entropy times an exponential of the batch's mean Brier score.

Released with Lin et al. 2025. The temperature, which also clips the score, is the default of
their command line.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("cross_entropy_brier_weight", temperature=1.0, form="scaled")
