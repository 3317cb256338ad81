r"""ResNet-50 on CIFAR-10, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar10_resnet50.py:flsd53 \
        --workdir=/tmp/cifar10_resnet50 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy      4.95    4.35    1.35     2.5
    brier              5.00    1.82    1.08     1.1
    mmce               4.99    4.56    1.19     2.6
    label_smoothing    5.29    2.96    1.67     0.9
    focal              5.25    1.48    1.42     1.1
    flsd53             4.98    1.55    0.95     1.1

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      4.24    2.11    2.52
    brier              1.78    1.24    1.11
    mmce               4.52    2.12    2.65
    label_smoothing    3.86    2.97    0.92
    flsd53             1.63    1.42    1.08
    adafocal           0.66    0.44    1.06

    Lin et al. 2025, quoted from notes on the paper; ECE

                        ECE  scaled
    cross_entropy      4.36    1.32
    focal                 -    1.15
    dual_focal            -    1.00
    bsce               0.88       -
    bsce_gra           0.74       -
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.cifar("cifar10", "resnet50", loss)
