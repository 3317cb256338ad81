"""Cross-entropy and a differentiable ECE, with soft ranks and soft bins: Bohdal et al. 2023.

Bins and sharpness are those of the code released with Lin et al. 2025, which uses it without
cross-entropy (`cross_entropy_scale=0`). lambda 1 and the sum over the batch, as in `mmce`, are our
choice.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "soft_ece",
        scale=1.0,
        cross_entropy_scale=1.0,
        num_bins=15,
        rank_sharpness=100.0,
        bin_temperature=0.01,
    )
