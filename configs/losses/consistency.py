"""Cross-entropy whose gradient has the focal weight of calibrated probabilities.

Released with Lin et al. 2025, whose calibrator is not in their repository: here the probabilities
are softmax(z / temperature) with one fixed temperature. Both values are ours; at temperature 1 it
is `fl_gra`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("consistency", gamma=3.0, temperature=1.5, weighting="gradient")
