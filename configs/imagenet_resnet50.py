r"""ResNet-50 on ImageNet, by the recipe of Goyal et al. 2017.

    python -m experiments.train --config=configs/imagenet_resnet50.py:flsd53 \
        --workdir=/tmp/imagenet_resnet50 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Our sources do not contain the papers' ImageNet recipe; configs/recipes.py lists the differences
from that of Goyal et al. 2017.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      2.93    1.50    0.88
    brier              3.91    3.59    0.92
    mmce               9.30    4.22    1.34
    label_smoothing   10.05    4.53    0.82
    flsd53            16.77    2.62    0.74
    adafocal           1.87    1.87    1.00
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.imagenet("resnet50_imagenet", loss)
