"""AdaFocal, whose gamma follows the calibration error of the validation set: Ghosh et al. 2022.

The values are the defaults of their command line, but for `binning`: their bins of equal mass hold
whole examples ("released"), and ours split the examples at a boundary ("mass"). The paper's tables
report means of five runs. `rule="slides"` is the plain rule, without sign, switch and clipping.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "adafocal",
        num_bins=15,
        gamma_initial=1.0,
        rate=1.0,
        switch=0.2,
        gamma_min=-2.0,
        gamma_max=20.0,
        rule="released",
        binning="mass",
        weighting="loss",
    )
