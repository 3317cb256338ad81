"""Cross-entropy, the baseline of every paper.

The released vision recipes of Mukhoti et al. 2020, Ghosh et al. 2022 and Lin et al. 2025 sum it
over the batch and clip the gradient to norm 2; the text recipes take the mean.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("cross_entropy")
