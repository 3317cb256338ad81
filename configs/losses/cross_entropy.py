"""Cross-entropy, the baseline of every paper.

Summed over the batch in the released vision recipes of Mukhoti et al. 2020, Ghosh et al. 2022 and
Lin et al. 2025, whose gradients are then clipped to norm 2; a mean in the text recipes.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("cross_entropy")
