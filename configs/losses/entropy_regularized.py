"""Cross-entropy minus the entropy of the prediction: Pereyra et al. 2017.

The text code of Mukhoti et al. 2020 uses lambda 1 and gamma 1, which weights the entropy like focal
loss; gamma 0 is the paper's regulariser. That code takes the mean over the batch for both.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("entropy_regularized", reduction="mean", scale=1.0, gamma=0.0)
