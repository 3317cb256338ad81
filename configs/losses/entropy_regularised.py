"""Cross-entropy less the entropy of the prediction: Pereyra et al. 2017.

The code for text of Mukhoti et al. 2020 has lambda 1, and gamma 1, which weighs the entropy like
focal loss; gamma 0 is the paper's regulariser. Both are means over the batch there.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("entropy_regularised", reduction="mean", scale=1.0, gamma=0.0)
