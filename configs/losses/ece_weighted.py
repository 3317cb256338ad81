"""Cross-entropy weighted by the calibration errors of the last validation.

Released with Lin et al. 2025. As in their code, the classwise error counts twice, and the weight
moves away from 1 gradually over the epochs.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("ece_weighted", num_bins=15, classwise_scale=2.0, binning="mass")
