r"""A small Transformer on Multi30k, German to English.

    python -m experiments.train --config=configs/multi30k_transformer_small.py:focal \
        --workdir=/tmp/multi30k --data_dir=DIR
    python -m experiments.translate --workdir=/tmp/multi30k < sentences.de
    python -m experiments.translation.score /tmp/multi30k --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Three pre-normalised blocks of width 256 in the encoder and in the decoder, 6.0 million parameters
with 8,000 subwords. Adam with betas 0.9 and 0.98, batches of 64 pairs of at most 28 subwords (3 %
of the pairs are longer), the mean over the tokens of a batch, 15 epochs; the learning rate rises
for 1,000 steps to 0.001 and falls with the inverse square root of the step. The recipe is ours.
"""

from ml_collections import ConfigDict, config_dict

from configs.losses import base


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = base(loss, reduction="mean", clip_norm=0.0)
    config.data.name = "multi30k"
    config.data.options = ConfigDict(
        {
            "direction": "de-en",
            "words": 8_000,
            "length": 28,
            "subwords": config_dict.placeholder(str),
            "training_size": config_dict.placeholder(int),
        }
    )
    config.model.name = "transformer"
    config.model.options = ConfigDict({"width": 256, "depth": 3, "heads": 4, "mlp_width": 512})
    config.model.options.update(places=256, norm="pre", dropout=0.2)
    of_tokens(config)
    config.num_epochs = 15
    config.batch_size = 64
    config.optimizer.learning_rate = 1e-3
    config.schedule.warm_up_steps = 1_000
    return config


def of_tokens(config: ConfigDict) -> None:
    """Set what all configs of translation share: metrics, optimizer and schedule."""
    # Metrics of each class would have thousands of columns.
    config.metrics = ("error", "nll", "ece")
    config.optimizer.name = "adam"
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-9
    config.optimizer.weight_decay = 0.0
    config.schedule.name = "inverse_sqrt"
    config.schedule.warm_up_factor = 0.0
