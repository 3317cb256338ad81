r"""ResNet-20 on CIFAR-10, by the recipe of the calibration papers.

    python -m experiments.train --config=configs/cifar10_resnet20.py --workdir=/tmp/resnet20 \
        --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Not run here yet. He et al. 2016 report an error of 8.75 % with a different recipe: weight decay
1e-4 and 64,000 steps, where this recipe takes 123,200 steps.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    return recipes.cifar("cifar10", "resnet20", loss)
