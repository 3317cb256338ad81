"""BSCE whose weight is computed at a fitted temperature.

Released with Lin et al. 2025. The weight is computed from softmax(z / T). T starts at 1 and is
refitted after each validation to minimise the ECE on a grid (or the NLL, `criterion="nll"`).
`weighting="gradient"` is their Gra variant. gamma and beta are those of `bsce`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "tempered_bsce", gamma=2.0, beta=2.0, weighting="loss", criterion="ece", num_bins=15
    )
