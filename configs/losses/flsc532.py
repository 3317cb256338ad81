"""Focal loss with a scheduled gamma, 5 then 3 then 2 (FLSc-532): Mukhoti et al. 2020.

gamma changes after 100 and 250 of 350 epochs; other numbers of epochs scale these in proportion (14
and 35 of 50 on 20 Newsgroups). `milestones` overrides them: (30, 70) of 100 on Tiny-ImageNet.
"""

from ml_collections import ConfigDict, config_dict

from configs.losses import fragment


def get_config() -> ConfigDict:
    """Return the fragment."""
    return fragment("flsc532", milestones=config_dict.placeholder(tuple))
