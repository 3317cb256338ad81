r"""DenseNet-121 on CIFAR-100, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar100_densenet121.py:flsd53 \
        --workdir=/tmp/cifar100_densenet121 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy     24.52   20.98    4.27     2.3
    brier             23.75    5.17    2.29     1.1
    mmce              24.00   19.13    3.06     2.1
    label_smoothing   24.05   12.89    7.52     1.2
    focal             23.25    4.15    1.25     1.1
    flsd53            22.67    3.73    1.31     1.1

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy     19.82    3.62    2.27
    brier              5.14    2.58    1.09
    mmce              19.16    3.11    2.13
    label_smoothing   12.81    8.95    1.19
    flsd53             2.58    1.80    1.10
    adafocal           1.73    1.73    1.00

    Lin et al. 2025, quoted from notes on the paper; ECE

                        ECE  scaled
    cross_entropy     19.10    3.43
    focal                 -    1.30
    dual_focal            -    1.83
    bsce               1.62       -
    bsce_gra           1.61       -
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.cifar("cifar100", "densenet121", loss)
