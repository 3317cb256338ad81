"""Cross-entropy weighted by 1 - recall of the true class: Tian et al. 2021.

alpha 1 uses only the recall of the batch. The paper's moving average (for iNaturalist) has a
smaller alpha, which our sources do not give; an older released function uses 0.5. The released code
takes the plain mean over all pixels; `counters="released"` selects its counters.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("recall", reduction="mean", alpha=1.0, counters="recall", normalized=False)
