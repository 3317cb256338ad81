"""Cross-entropy with class weights by the effective number of examples: Cui et al. 2019.

They search beta in 0.9, 0.99, 0.999 and 0.9999, that is, volumes of 10, 100, 1,000 and 10,000, and
take the last one on long-tailed CIFAR-10 and on the larger sets.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("class_weighted", reduction="mean", balancing="effective", volume=10_000.0)
