r"""ResNet-152 on Places-LT, by the recipe of Tian et al. 2021 after Kang et al. 2020.

    python -m experiments.train --config=configs/places_lt_resnet152.py:recall \
        --workdir=/tmp/places_lt --data_dir=DIR --init_from=RESNET152.npz

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout. Kang et al. start
from weights of ImageNet; calib_jax/models/README.md shows how to convert such weights.

SGD with learning rate 0.005 and batches of 128, the mean of the loss. Our sources do not contain
the other values: 30 epochs, a cosine schedule, momentum 0.9 and weight decay 5e-4 are ours. The
second stage of Kang et al. trains the last layer alone, with classes drawn equally often:

    python -m experiments.train --config=configs/places_lt_resnet152.py --workdir=/tmp/balanced \
        --data_dir=DIR --init_from=/tmp/places_lt --config.num_epochs=10 \
        --config.data.order=class_balanced \
        --config.optimizer.groups='(("head/*", {}), ("*", {"frozen": True}))'

Not run here yet.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.long_tail("places_lt", "resnet152_imagenet", loss)
    config.data.options.jitter = 0.4
    config.num_epochs = 30
    config.optimizer.learning_rate = 0.005
    return config
