"""`bsce_gra` with the sample-dependent gamma of FLSD-53, released with Lin et al. 2025.

The gammas are those of FLSD-53. Our sources give no beta; 2 is that of `bsce_gra`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("bsce_adaptive_gra", thresholds=(0.2, 0.5), gammas=(5.0, 3.0, 3.0), beta=2.0)
