"""FLSD-53 whose weight is taken at a fitted temperature.

Released with Lin et al. 2025. The weight sees softmax(z / T). T starts at 1 and is fitted again
after each validation, to the smallest ECE on a grid (`criterion="nll"`: the smallest NLL).
`weighting="gradient"` is their Gra variant. The gammas are those of FLSD-53.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "tempered_flsd53", gammas=(5.0, 3.0, 3.0), weighting="loss", criterion="ece", num_bins=15
    )
