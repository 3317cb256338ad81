r"""A small DenseNet on CIFAR-100, as the authors of temperature scaling release it.

    python -m experiments.train --config=configs/cifar100_densenet40_bc.py \
        --workdir=/tmp/cifar100_densenet40_bc --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md says what it holds.

The recipe of the program beside Guo et al. 2017: DenseNet-40-BC with growth 12, 300 epochs in
batches of 64, rate 0.1 with Nesterov momentum, dropped at half and three quarters, a mean over the
batch. The program has a weight decay of 1e-4 that it never hands to its optimiser, so there is
none here. Its 5,000 images for validation are drawn by another rule than ours.

Not run here yet, and no source of this library has an error or an ECE for it.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config with one of the losses in configs/losses."""
    config = recipes.cifar("cifar100", "densenet40_bc", loss)
    config.num_epochs = 300
    config.batch_size = 64
    config.loss.reduction = "mean"
    config.warm_up_loss.reduction = "mean"
    config.optimiser.nesterov = True
    config.optimiser.weight_decay = 0.0
    config.optimiser.clip_norm = 0.0
    config.schedule.milestones = (150, 225)
    return config
