"""LeNet-5 on CIFAR-10: small enough for a processor without a GPU.

    python -m experiments.train --config=configs/cifar10_lenet5.py --workdir=/tmp/lenet5 --data_dir=DIR

DIR is the folder of TFDS, with a subfolder cifar10; calib_jax/data/README.md says how to make it.
"""

from ml_collections import ConfigDict, config_dict

from configs.base import base


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config with one of the losses in configs/losses."""
    config = base(loss)
    config.data.name = "cifar10"
    config.data.options = ConfigDict(
        {"validation": 0.1, "seed": 1, "training_size": config_dict.placeholder(int)}
    )
    config.model.name = "lenet5"
    config.model.options = ConfigDict({"pool": "max", "activation": "relu"})
    config.num_epochs = 20
    config.loss.reduction = "mean"
    config.warm_up_loss.reduction = "mean"
    config.optimiser.learning_rate = 0.02
    config.optimiser.clip_norm = 0.0
    config.schedule.name = "cosine"
    return config
