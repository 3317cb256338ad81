"""Cross-entropy whose gradient has the focal weight of calibrated probabilities.

Released with Lin et al. 2025. Their calibrator is not in their repository, so here the
probabilities are softmax(z / temperature) with a fixed temperature. Both values are our choice; at
temperature 1 this is `fl_gra`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("consistency", gamma=3.0, temperature=1.5, weighting="gradient")
