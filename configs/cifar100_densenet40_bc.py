r"""A small DenseNet on CIFAR-100, by the code of the authors of temperature scaling.

    python -m experiments.train --config=configs/cifar100_densenet40_bc.py \
        --workdir=/tmp/cifar100_densenet40_bc --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The recipe of the code released with Guo et al. 2017: DenseNet-40-BC with growth 12, 300 epochs in
batches of 64, learning rate 0.1 with Nesterov momentum, dropped at half and three quarters of the
epochs, and the mean over the batch. The code steps its schedule before the epoch, so it drops the
rate one epoch earlier in effect: --config.schedule.milestones="(149, 224)". The code defines a
weight decay of 1e-4 but never passes it to its optimizer, so there is none here. Its 5,000
validation images are chosen by a different rule.

Not run here yet, and our sources contain no error or ECE for it.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.cifar("cifar100", "densenet40_bc", loss)
    config.num_epochs = 300
    config.batch_size = 64
    config.loss.reduction = "mean"
    config.warm_up_loss.reduction = "mean"
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0
    config.schedule.milestones = (150, 225)
    return config
