"""Brier score weighted by a detached exponential of itself.

Released with Lin et al. 2025. The temperature, which also clips the score, is the default of
their command line. `form` names their four variants: "scaled", "unscaled", "no_minus" and "pure".
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("brier_exp", temperature=1.0, form="scaled")
