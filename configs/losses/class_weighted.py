"""Cross-entropy with class weights by the effective number of examples: Cui et al. 2019.

They search beta in 0.9, 0.99, 0.999 and 0.9999: volumes of 10, 100, 1,000 and 10,000. Which
of them is best depends on the data set; that we take the last one is our choice.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "class_weighted", reduction="mean", balancing="effective", volume=10_000.0, normalized=False
    )
