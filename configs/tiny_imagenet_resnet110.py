r"""ResNet-110 on Tiny ImageNet, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/tiny_imagenet_resnet110.py:flsd53 \
        --workdir=/tmp/tiny_imagenet_resnet110 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

100 epochs in batches of 64, with learning rate drops at 40 and 60; the Brier score uses its own
learning rate.

The papers' ResNet-110 has [3, 4, 26, 3] bottleneck blocks and 46 million parameters. The small
ResNet-110 of He et al. 2016 is `resnet110_small` here.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      8.11    1.93    1.20
    brier              3.74    2.83    0.91
    mmce               7.40    1.95    1.20
    label_smoothing    9.36    4.51    0.83
    flsd53             1.88    1.88    1.00
    adafocal           1.85    1.85    1.00
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.tiny_imagenet("resnet110_tiny_imagenet", loss)
