r"""Wide ResNet 26-10 on CIFAR-100, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar100_wide_resnet26_10.py:flsd53 \
        --workdir=/tmp/cifar100_wide_resnet26_10 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The papers' network normalises after its convolutions and has no dropout, unlike that
of Zagoruyko and Komodakis 2016.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy     20.70   15.33    2.88     2.2
    brier             20.59    4.31    2.70     1.1
    mmce              20.73   13.17    4.37     1.9
    label_smoothing   21.19    4.84    4.84     1.0
    focal             19.69    2.13    2.13     1.0
    flsd53            20.11    3.03    1.64     1.1

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy     14.83    3.23    2.12
    brier              4.27    2.85    1.08
    mmce              13.12    4.23    1.91
    label_smoothing    5.10    5.10    1.00
    flsd53             2.25    2.25    1.00
    adafocal           1.95    1.95    1.00
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.cifar("cifar100", "wide_resnet26_10", loss)
