"""Focal loss with a scheduled gamma, 5 then 3 then 2 (FLSc-532): Mukhoti et al. 2020.

gamma changes after 100 and 250 of 350 epochs, and in another number of epochs in proportion (14 and
35 of 50 on 20 Newsgroups), unless `milestones` names the epochs: (30, 70) of 100 on Tiny-ImageNet.
"""

from ml_collections import ConfigDict, config_dict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("flsc532", milestones=config_dict.placeholder(tuple))
