r"""Wide ResNet 26-10 on CIFAR-10, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar10_wide_resnet26_10.py:flsd53 \
        --workdir=/tmp/cifar10_wide_resnet26_10 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The papers' network normalises after its convolutions and has no dropout, unlike that
of Zagoruyko and Komodakis 2016.

The Brier score trains for 550 epochs with the same milestones, as in the released scripts.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy      3.86    3.23    0.92     2.2
    brier              4.08    1.25    1.25     1.0
    mmce               3.91    3.29    0.86     2.2
    label_smoothing    4.20    4.26    1.84     0.8
    focal              4.13    1.69    0.97     0.9
    flsd53             4.01    1.56    0.84     0.9

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      3.42    1.87    2.16
    brier              1.72    1.72    1.00
    mmce               3.31    1.60    2.22
    label_smoothing    4.26    2.44    0.81
    flsd53             1.82    1.57    0.94
    adafocal           0.64    0.44    1.06
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.cifar("cifar10", "wide_resnet26_10", loss)
    if loss == "brier":
        config.num_epochs = 550
    return config
