r"""Fine-tuning of a pretrained BERT on 20 Newsgroups, by a recipe of ours.

    python -m experiments.train --config=configs/newsgroups_bert.py:flsd53 --workdir=/tmp/bert \
        --data_dir=DIR --init_from=BERT --config.data.options.pieces=BERT

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout. BERT is a folder
of Hugging Face with `config.json`, `model.safetensors` and `vocab.txt`.

The papers fine-tune BERT without publishing how, so this is the usual recipe: AdamW with learning
rate 5e-5 and weight decay 0.01 except for biases and norms, gradients clipped to norm 1, batches of
32, three epochs. The rate rises during the first tenth of the steps and then falls linearly to 0.
The loss is the mean over the batch, and dropout is BERT's.

The options of the network are those of BERT-base; a smaller one needs its own, for example MiniLM:

    --config.model.options.width=384 --config.model.options.depth=6 \
        --config.model.options.mlp_width=1536

Its time grows with the length: --config.data.options.length=128 and --config.num_epochs=2 take a
fifth of the default's. On accelerators --config.precision=bfloat16 is faster, and --config.remat
saves memory.

Only MiniLM was trained here, no BERT-base yet.
"""

from ml_collections import ConfigDict, config_dict

from configs.losses import base

WARM_UP = 0.1  # of all epochs


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = base(loss, reduction="mean")
    config.data.name = "newsgroups"
    config.data.options = ConfigDict(
        {
            "length": 512,
            "cut": "end",
            "strip": ("headers",),
            "pieces": config_dict.placeholder(str),
            "seed": 1,
        }
    )
    config.model.name = "bert"
    config.model.options = ConfigDict(
        {
            **{"words": 30_522, "width": 768, "depth": 12, "heads": 12, "mlp_width": 3_072},
            **{"places": 512, "pool": "first", "dropout": 0.1},
        }
    )
    config.num_epochs = 3
    config.batch_size = 32
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-5
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0
    config.optimizer.groups = (
        ("*/bias", {"weight_decay": 0.0}),
        ("*/scale", {"weight_decay": 0.0}),
    )
    config.schedule.name = "linear"
    config.schedule.start = config.get_ref("num_epochs") * WARM_UP
    config.schedule.warm_up_epochs = config.get_ref("num_epochs") * WARM_UP
    config.schedule.warm_up_factor = 0.0
    return config
