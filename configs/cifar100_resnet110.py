r"""ResNet-110 on CIFAR-100, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar100_resnet110.py:flsd53 \
        --workdir=/tmp/cifar100_resnet110 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The papers' ResNet-110 has [3, 4, 26, 3] bottleneck blocks and 46 million parameters. The small
ResNet-110 of He et al. 2016 is `resnet110_small` here.

The Brier score trains for 430 epochs with the same milestones, as in the released scripts.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy     22.73   19.05    4.43     2.3
    brier             25.10    7.88    4.65     1.2
    mmce              23.07   19.14    3.86     2.3
    label_smoothing   23.43   11.02    5.89     1.1
    focal             22.92    8.64    3.95     1.2
    flsd53            22.51    8.56    4.12     1.2

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy     19.44    6.11    2.28
    brier              7.70    4.55    1.18
    mmce              19.11    4.88    2.32
    label_smoothing   11.18    8.58    1.09
    flsd53             7.08    3.85    1.20
    adafocal           1.40    1.40    1.00

    Lin et al. 2025, quoted from notes on the paper; ECE

                        ECE  scaled
    cross_entropy     18.84    4.63
    focal                 -    3.71
    dual_focal            -    3.47
    bsce               2.75       -
    bsce_gra           2.53       -
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.cifar("cifar100", "resnet110", loss)
    if loss == "brier":
        config.num_epochs = 430
    return config
