"""DCA, the gap between the batch's mean confidence and accuracy: Liang et al. 2020.

Scale and reduction are those that the scripts of Hebbalaguppe et al. 2022 use for "NLL+DCA".
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("dca", reduction="mean", scale=1.0)
