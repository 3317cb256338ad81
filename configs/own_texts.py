r"""Texts of your own, in a CSV file; a recipe of ours for a few thousand short texts.

    python -m experiments.train --config=configs/own_texts.py:focal --workdir=/tmp/own \
        --config.data.options.csv_file=texts.csv

The file has the columns `text`, `label` and optionally `split`; `calib_jax/data/README.md`
describes them. Longer texts, and more of their words:

    --config.data.options.length=500 --config.data.options.words=20000

The network has a vector for each of these words, which are those of the training texts. A
convolutional network with global pooling learns for 20 epochs by Adam, with a rate that falls as a
cosine, and the mean of the loss.
"""

from ml_collections import ConfigDict

from configs.losses import base


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = base(loss, reduction="mean", clip_norm=0.0)
    config.data.name = "own_texts"
    config.data.options = ConfigDict(
        {
            "csv_file": "own_texts.csv",
            "length": 200,
            "words": 10_000,
            "cut": "end",
            "validation": 0.15,
            "test": 0.15,
            "seed": 0,
        }
    )
    config.model.name = "global_pooling_cnn"
    config.model.options = ConfigDict({"width": 100, "dropout": 0.3})
    config.model.options.words = config.data.options.get_oneway_ref("words")
    config.num_epochs = 20
    config.batch_size = 32
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.0
    config.schedule.name = "cosine"
    return config
