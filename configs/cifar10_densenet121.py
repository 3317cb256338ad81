r"""DenseNet-121 on CIFAR-10, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar10_densenet121.py:flsd53 \
        --workdir=/tmp/cifar10_densenet121 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy      5.00    4.52    1.31     2.4
    brier              5.11    1.53    1.53     1.0
    mmce               5.41    5.10    1.61     2.5
    label_smoothing    5.09    1.88    1.82     0.9
    focal              5.33    1.32    1.26     0.9
    flsd53             5.46    1.22    1.22     1.0

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      4.26    2.21    2.33
    brier              2.09    2.09    1.00
    mmce               5.05    2.26    2.52
    label_smoothing    4.40    3.31    0.94
    flsd53             1.40    1.40    1.00
    adafocal           0.62    0.59    1.02
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.cifar("cifar10", "densenet121", loss)
