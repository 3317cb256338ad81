r"""DenseNet-121 on ImageNet, by the recipe of Goyal et al. 2017.

    python -m experiments.train --config=configs/imagenet_densenet121.py:flsd53 \
        --workdir=/tmp/imagenet_densenet121 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Our sources do not contain the papers' ImageNet recipe; configs/recipes.py lists the differences
from that of Goyal et al. 2017.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      1.82    1.82    1.00
    brier              2.94    2.21    0.90
    mmce               1.22    1.22    1.00
    label_smoothing    5.30    1.42    0.90
    flsd53            19.19    2.24    0.70
    adafocal           1.50    1.50    1.00
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.imagenet("densenet121_imagenet", loss)
