"""A network on a mixture of Gaussians with known class probabilities.

    python -m experiments.train --config=configs/gaussians.py:focal --workdir=/tmp/gaussians

The setting of the toy experiment of Lin et al. 2025: two classes in two dimensions, one hidden
layer of 100 units, SGD with learning rate 0.3 in batches of 1,000, ten epochs.
"""

from ml_collections import ConfigDict

from configs.losses import base


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = base(loss, reduction="mean", clip_norm=0.0)
    config.data.name = "gaussians"
    config.data.options = ConfigDict(
        {"num_classes": 2, "dimensions": 2, "training_size": 20_000, "seed": 0}
    )
    config.model.name = "mlp"
    config.model.options = ConfigDict({"hidden": (100,)})
    config.num_epochs = 10
    config.batch_size = 1000
    config.optimizer.learning_rate = 0.3
    config.optimizer.momentum = 0.0
    config.optimizer.weight_decay = 0.0
    config.schedule.name = "constant"
    return config
