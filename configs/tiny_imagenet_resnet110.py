r"""ResNet-110 on Tiny ImageNet, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/tiny_imagenet_resnet110.py:flsd53 \
        --workdir=/tmp/tiny_imagenet_resnet110 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md says what it holds.

100 epochs, with drops at 40 and 60, in batches of 64; the Brier score has a rate of its own.

The papers' ResNet-110 has bottleneck blocks, [3, 4, 26, 3] of them, and 46 million parameters; it
is not the small one of that name in He et al. 2016, which is `resnet110_small` here.

Not run here yet. What is published, in percent, before and after scaling by a temperature T:

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
    """Return the config with one of the losses in configs/losses."""
    return recipes.tiny_imagenet("resnet110_tiny_imagenet", loss)
