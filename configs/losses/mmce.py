"""Cross-entropy and MMCE, a kernel estimate of the batch's calibration error: Kumar et al. 2018.

The scripts of Mukhoti et al. 2020 use lambda 2 (for vision, and for `mmce_weighted`); other
released code uses 1, 4, 8 and 10. They minimise N (mean CE + lambda MMCE) over a batch of N, which
equals the sum of our terms, because we add the penalty to the term of every example.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("mmce", scale=2.0, bandwidth=0.4)
