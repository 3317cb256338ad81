r"""ResNet-110 on ImageNet, by the recipe of Goyal et al. 2017.

    python -m experiments.train --config=configs/imagenet_resnet110.py:flsd53 \
        --workdir=/tmp/imagenet_resnet110 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Our sources do not contain the papers' ImageNet recipe; configs/recipes.py lists the differences
from that of Goyal et al. 2017.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      1.28    1.28    1.00
    brier              3.98    2.87    0.90
    mmce               1.83    1.83    1.00
    label_smoothing    4.02    2.76    0.90
    flsd53            18.66    2.51    0.70
    adafocal           1.17    1.17    1.00
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.imagenet("resnet110_imagenet", loss)
