"""Cross-entropy and the MMCE with separate weights for right and wrong answers: Kumar et al. 2018.

The MMCE baseline of Mukhoti et al. 2020, whose vision scripts use lambda 2. They minimise N (mean
CE + lambda MMCE_w) over a batch of N, which equals the sum of our terms, as in `mmce`. Their code
divides by the numbers of examples twice, and lambda 2 was chosen with it. This follows the formula,
whose penalty has ten times their gradient on a batch of 128 that is mostly right;
`double_normalization=True` reproduces their runs.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("mmce_weighted", scale=2.0, bandwidth=0.4, double_normalization=False)
