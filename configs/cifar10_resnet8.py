r"""ResNet-8 on 10,000 images of CIFAR-10: the papers' claims about training, at laptop size.

    python -m experiments.train --config=configs/cifar10_resnet8.py --workdir=/tmp/resnet8 \
        --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The recipe is that of the papers with four changes: 10,000 of the 45,000 training images, no
augmentation, 40 epochs, and drops of the learning rate at epochs 20 and 30. Few images without
augmentation make a small network overfit, as the papers' large networks do on all images: this
overfitting is what their claims are about. Every epoch also measures the test set and the training
set, right and wrong predictions apart, and the norms of the last layer; the checkpoints of all
epochs are kept (300 kB each), so that other statistics of training can be computed later.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.cifar("cifar10", "resnet8", loss)
    config.model.options = ConfigDict({"width": 16, "norm": "batch"})
    config.data.options.training_size = 10_000
    config.augment = False
    config.num_epochs = 40
    config.schedule.milestones = (20, 30)
    config.diagnose = True
    config.evaluate_test = True
    config.run.keep_every_epochs = 1
    return config
