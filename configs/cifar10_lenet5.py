r"""LeNet-5 on CIFAR-10: small enough for a processor without a GPU.

    python -m experiments.train --config=configs/cifar10_lenet5.py --workdir=/tmp/lenet5 \
        --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md says what it holds.
Twenty epochs take about four minutes on two cores. One run with cross-entropy: test error .322,
NLL .937, ECE .023 (15 bins of equal width, n = 10,000, 90 % interval .019 to .032). It was made
on images that had been through JPEG, in another order than the papers'; the original ones, as
TFDS prepares them, have not been tried here. The recipe is ours: no paper of this library trains
this network on these images.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config with one of the losses in configs/losses."""
    config = recipes.cifar("cifar10", "lenet5", loss)
    config.model.options = ConfigDict({"pool": "max", "activation": "relu", "dtype": "float32"})
    config.num_epochs = 20
    config.loss.reduction = "mean"
    config.warm_up_loss.reduction = "mean"
    config.optimiser.learning_rate = 0.02
    config.optimiser.clip_norm = 0.0
    config.schedule.name = "cosine"
    return config
