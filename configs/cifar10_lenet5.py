r"""LeNet-5 on CIFAR-10: small enough to train on a CPU.

    python -m experiments.train --config=configs/cifar10_lenet5.py --workdir=/tmp/lenet5 \
        --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.
Twenty epochs take about four minutes on two cores. Cross-entropy with five seeds (mean and standard
deviation; n = 10,000, images as prepared by TFDS): test error .329 ± .008, NLL .936 ± .020, ECE
.017 ± .004 (15 bins of equal width), T 0.97. It does not overfit in these epochs; ResNet-8 on fewer
images (cifar10_resnet8) does. The recipe is ours: none of our sources trains this network on
CIFAR-10.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.cifar("cifar10", "lenet5", loss)
    config.model.options = ConfigDict({"pool": "max", "activation": "relu"})
    config.num_epochs = 20
    config.loss.reduction = "mean"
    config.warm_up_loss.reduction = "mean"
    config.optimizer.learning_rate = 0.02
    config.optimizer.clip_norm = 0.0
    config.schedule.name = "cosine"
    return config
