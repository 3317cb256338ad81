"""LogitNorm, cross-entropy of logits of constant norm: Wei et al. 2022.

The temperature depends on the data: 0.04 is the value that OpenOOD uses for it; the released README
trains CIFAR-10 with 0.01.
"""

from ml_collections import ConfigDict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("logit_norm", reduction="mean", tau=0.04)
