r"""ResNet-50 on iNaturalist 2018, by the recipe of Tian et al. 2021 after Kang et al. 2020.

    python -m experiments.train --config=configs/inaturalist2018_resnet50.py:recall \
        --workdir=/tmp/inaturalist --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

SGD with learning rate 0.01 and batches of 128, the mean of the loss. Our sources do not contain the
other values: 90 epochs, a cosine schedule, momentum 0.9 and weight decay 5e-4 are ours. The second
stage of Kang et al. is that of configs/places_lt_resnet152.py.

Not run here yet.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.long_tail("inaturalist2018", "resnet50_imagenet", loss)
    config.data.options.validation_per_class = 1
    config.data.options.seed = 0
    config.num_epochs = 90
    config.optimizer.learning_rate = 0.01
    return config
