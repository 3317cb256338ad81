r"""Images of your own, a folder for each class; a recipe of ours for a few thousand small images.

    python -m experiments.train --config=configs/own_images.py:focal --workdir=/tmp/own \
        --config.data.options.folder=photos

`photos/cat/1.png`, `photos/dog/2.jpg` and so on; `calib_jax/data/README.md` describes folders for
train, val and test, and CSV files of files and labels. Other sizes of images:

    --config.data.options.height=64 --config.data.options.width=64

A ResNet-8 learns for 40 epochs with a rate that falls as a cosine, and the mean of the loss. Your
own network, loss or data set is an import path: --config.model.name=my_module:Network.
"""

from ml_collections import ConfigDict

from configs.losses import base


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = base(loss, reduction="mean")
    config.data.name = "own_images"
    config.data.options = ConfigDict(
        {
            "folder": "own_images",
            "csv_file": "",
            "height": 32,
            "width": 32,
            "channels": 3,
            "validation": 0.15,
            "test": 0.15,
            "seed": 0,
            "augment": "crop_and_flip",
        }
    )
    config.model.name = "resnet8"
    config.num_epochs = 40
    config.batch_size = 32
    config.optimizer.learning_rate = 0.05
    config.schedule.name = "cosine"
    return config
