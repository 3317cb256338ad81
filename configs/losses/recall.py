"""Cross-entropy weighted by 1 - recall of the true class: Tian et al. 2021.

alpha 1 takes the recall of the batch alone; the paper's moving average (for iNaturalist) has a
smaller one, whose value is not in our sources; an older released function has 0.5. A plain mean
over all pixels in the released code, whose counters are `counters="released"`.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment(
        "recall", reduction="mean", alpha=1.0, counters="recall", normalised=False, weighting="loss"
    )
