r"""Binary Tree-LSTM on the SST, by the recipe of the code released with Mukhoti et al. 2020.

    python -m experiments.train --config=configs/sst_tree_lstm.py:flsd53_text --workdir=/tmp/sst \
        --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

AdaGrad with learning rate 0.05 and weight decay 1e-4; the word vectors follow plain SGD with
learning rate 0.1. Batches of 25 trees, 25 epochs, without the last part of an epoch; the loss is
summed over the nodes of a tree and averaged over trees. FLSD-53 of the code changes gamma at the
probability 0.19 (flsd53_text); flsd53 does at 0.2, as for images. The scheduled gammas (flsc531,
flsc532) change at epochs 3 and 7, as in the code. The published networks are those with the best
validation accuracy (`experiments.evaluate --checkpoint=best_error`). Word vectors are those of
GloVe (--config.data.options.vectors=glove.840B.300d.txt); without a file they are learned.

The last layer has three classes, and the papers score the root between the two polar ones: they set
the probability of "neutral" to 0 and do not divide by the sum of the others. So do error and the
calibration errors of the training log (`excluded_class`); reports divide, because their NLL and
their tests need probabilities. --config.model.options.excluded_class=1 divides in the log, too.
"""

from ml_collections import ConfigDict, config_dict

from configs.losses import base


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = base(loss, reduction="examples", clip_norm=0.0)
    config.data.name = "sst"
    config.data.options = ConfigDict(
        {"vocabulary": "all", "vectors": config_dict.placeholder(str), "leaves": 56, "seed": 1}
    )
    config.model.name = "tree_lstm"
    config.model.options = ConfigDict(
        {
            "words": 19_428,  # all words of the data set, padding and the number of unknown words
            "width": 300,
            "memory": 150,
            "dropout": 0.5,
            "excluded_class": config_dict.placeholder(int),
        }
    )
    config.excluded_class = 1
    config.num_epochs = 25
    config.batch_size = 25
    config.drop_last = True
    config.optimizer.name = "adagrad"
    config.optimizer.learning_rate = 0.05
    config.optimizer.weight_decay = 1e-4
    config.optimizer.groups = (
        (
            "embedding/*",
            {"name": "sgd", "learning_rate_factor": 2.0, "momentum": 0.0, "weight_decay": 0.0},
        ),
    )
    config.schedule.name = "constant"
    if loss.startswith("flsc"):
        config.loss.options.milestones = (3, 7)
    return config
