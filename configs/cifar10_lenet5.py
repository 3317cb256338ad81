r"""LeNet-5 on CIFAR-10: small enough to train on a CPU.

    python -m experiments.train --config=configs/cifar10_lenet5.py --workdir=/tmp/lenet5 \
        --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.
Twenty epochs take about four minutes on two cores. One run with cross-entropy: test error .322,
NLL .937, ECE .023 (15 bins of equal width, n = 10,000, 90 % interval .019 to .032). This run used
JPEG-compressed images in a different order from the papers'; the original images, as prepared by
TFDS, have not been tried yet. The recipe is ours: none of our sources trains this network on
CIFAR-10.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses."""
    config = recipes.cifar("cifar10", "lenet5", loss)
    config.model.options = ConfigDict({"pool": "max", "activation": "relu"})
    config.num_epochs = 20
    config.loss.reduction = "mean"
    config.warm_up_loss.reduction = "mean"
    config.optimizer.learning_rate = 0.02
    config.optimizer.clip_norm = 0.0
    config.schedule.name = "cosine"
    return config
