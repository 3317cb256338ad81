r"""Transformer-Base on WMT 2014, English to German, as in the appendix of Mukhoti et al. 2020.

    python -m experiments.train --config=configs/wmt14_transformer_base.py:focal \
        --workdir=/tmp/wmt14 --data_dir=DIR
    python -m experiments.translation.score /tmp/wmt14 --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The published BLEU on the test part, at the best temperature, is 26.33 with cross-entropy, 26.36
with label smoothing and 26.39 with focal loss. The appendix gives no recipe, so this is that of
Vaswani et al. 2017: 37,000 subwords of both languages, batches of about 25,000 tokens of each, Adam
with betas 0.9 and 0.98, 4,000 warm-up steps and dropout 0.1, for about 100,000 steps. Their numbers
are of averaged weights, beam 4 and length penalty 0.6.

Not run here yet.
"""

from ml_collections import ConfigDict, config_dict

from configs.losses import base
from configs.multi30k_transformer_small import of_tokens

WIDTH, WARM_UP_STEPS = 512, 4_000


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = base(loss, reduction="mean", clip_norm=0.0)
    config.data.name = "wmt14"
    config.data.options = ConfigDict(
        {
            "direction": "en-de",
            "words": 37_000,
            "length": 128,
            "subwords": config_dict.placeholder(str),
            "learned_from": 1_000_000,
        }
    )
    config.model.name = "transformer"
    config.model.options = ConfigDict({"width": WIDTH, "depth": 6, "heads": 8, "mlp_width": 2_048})
    config.model.options.update(places=256, norm="post", dropout=0.1)
    of_tokens(config)
    config.num_epochs = 17
    config.batch_size = 768
    config.optimizer.learning_rate = (WIDTH * WARM_UP_STEPS) ** -0.5
    config.schedule.warm_up_steps = WARM_UP_STEPS
    return config
