r"""ResNet-110 on CIFAR-10, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar10_resnet110.py:flsd53 \
        --workdir=/tmp/cifar10_resnet110 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The papers' ResNet-110 has [3, 4, 26, 3] bottleneck blocks and 46 million parameters. The small
ResNet-110 of He et al. 2016 is `resnet110_small` here.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy      4.89    4.41    1.09     2.8
    brier              5.48    2.56    1.25     1.2
    mmce               5.40    5.08    1.42     2.8
    label_smoothing    5.52    2.09    2.09     1.0
    focal              5.08    1.55    1.02     1.1
    flsd53             5.42    1.87    1.07     1.1

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      4.39    2.27    2.74
    brier              2.63    1.75    1.21
    mmce               5.16    2.53    2.83
    label_smoothing    4.44    4.44    1.00
    flsd53             1.90    1.25    1.20
    adafocal           0.71    0.73    1.02

    Lin et al. 2025, quoted from notes on the paper; ECE

                        ECE  scaled
    cross_entropy      4.70    1.56
    focal                 -    1.17
    dual_focal            -    1.01
    bsce               0.99       -
    bsce_gra           0.87       -
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.cifar("cifar10", "resnet110", loss)
