"""Cross-entropy weighted by a detached exponential of itself.

Released with Lin et al. 2025. The temperature, which also clips the loss, is the default of
their command line.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("cross_entropy_exp", temperature=1.0, form="scaled")
