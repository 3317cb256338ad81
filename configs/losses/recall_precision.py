"""Recall loss plus a precision term on the wrong predictions.

Released with Tian et al. 2021, with a floor of 1e-9 on the probability in that term; the values are
those of `recall`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("recall_precision", reduction="mean", alpha=1.0, counters="recall", floor=0.0)
