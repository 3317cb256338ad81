r"""ResNet-8 on CIFAR-10-LT, whose classes fall from 4,475 images to 44: long tail at laptop size.

    python -m experiments.train --config=configs/cifar10_lt_resnet8.py:recall \
        --workdir=/tmp/long_tail --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The training part is long-tailed by a factor of 100, as in Cao et al. 2019, after 5,000 images are
held out for validation; validation and test have equal classes. The mean of the loss over a batch
of 128, without clipping, SGD at 0.1 with drops at epochs 20 and 30 of 40, weight decay 2e-4, crops
and flips. Cao et al. train a ResNet-32 for 200 epochs.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.cifar("cifar10", "resnet8", loss)
    config.model.options = ConfigDict({"width": 16, "norm": "batch"})
    config.data.options.imbalance = 100.0
    config.num_epochs = 40
    config.schedule.milestones = (20, 30)
    config.loss.reduction = "mean"
    config.warm_up_loss.reduction = "mean"
    config.optimizer.weight_decay = 2e-4
    config.optimizer.clip_norm = 0.0
    return config
