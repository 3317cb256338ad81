r"""ResNet-50 on CIFAR-100, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar100_resnet50.py:flsd53 \
        --workdir=/tmp/cifar100_resnet50 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy     23.30   17.52    3.42     2.1
    brier             23.39    6.52    3.64     1.1
    mmce              23.20   15.32    2.38     1.8
    label_smoothing   23.43    7.81    4.01     1.1
    focal             22.75    5.13    1.97     1.1
    flsd53            23.22    4.50    2.00     1.1

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy     17.17    3.71    2.16
    brier              6.57    3.66    1.13
    mmce              15.28    2.32    1.80
    label_smoothing    7.86    4.10    1.13
    flsd53             5.64    2.97    1.17
    adafocal           1.36    1.36    1.00

    Lin et al. 2025, quoted from notes on the paper; ECE

                        ECE  scaled
    cross_entropy     18.05    3.05
    focal                 -    2.57
    dual_focal            -    2.56
    bsce               1.90       -
    bsce_gra           1.59       -
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.cifar("cifar100", "resnet50", loss)
