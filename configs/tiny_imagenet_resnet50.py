r"""ResNet-50 on Tiny ImageNet, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/tiny_imagenet_resnet50.py:flsd53 \
        --workdir=/tmp/tiny_imagenet_resnet50 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

100 epochs in batches of 64, with learning rate drops at 40 and 60; the Brier score uses its own
learning rate.

Not run here yet. Published results in percent, before and after temperature scaling with T:

    Mukhoti et al. 2020, tables 1 and 2; ECE in 15 bins of equal width

                      error     ECE  scaled       T
    cross_entropy     49.81   15.32    5.48     1.4
    brier             53.20    4.44    4.13     0.9
    mmce              51.31   13.01    5.55     1.3
    label_smoothing   47.12   15.23    6.51     0.7
    focal             49.69    1.87    1.87     1.0
    flsd53            49.06    1.76    1.76     1.0

    Ghosh et al. 2022 (their slides), mean of five runs; ECE in bins of equal mass

                        ECE  scaled       T
    cross_entropy      7.81    3.73    1.45
    brier              3.42    2.98    0.93
    mmce               8.49    4.25    1.36
    label_smoothing    9.12    4.66    0.78
    flsd53             2.86    2.48    1.05
    adafocal           2.61    2.29    0.96

    Lin et al. 2025, quoted from notes on the paper; ECE

                        ECE  scaled
    cross_entropy     14.94    5.16
    focal                 -    2.18
    dual_focal            -    2.28
    bsce               1.76       -
    bsce_gra           1.47       -
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.tiny_imagenet("resnet50_tiny_imagenet", loss)
