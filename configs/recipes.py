"""The recipes of the image data sets, for any network: what each changes in `base`.

A config of a network on one of them is a call of a function of this file, and what differs from
that for this network or one of its losses.
"""

from typing import Any

from ml_collections import ConfigDict, config_dict

from configs.base import base


def cifar(name: str, network: str, loss: str) -> ConfigDict:
    """Return the config of a network on CIFAR-10 or CIFAR-100: the recipe of `base`.

    One epoch is 352 steps. The schedule of Mukhoti et al.'s program drops the rate one epoch
    earlier than their paper says, which is --config.schedule.milestones="(149, 249)"; the programs
    of Ghosh et al. 2022 and Lin et al. 2025 drop it where the paper says, and so does this one.

    Mukhoti et al.'s program normalises the test images of CIFAR-100 by the statistics of ImageNet,
    and all others by those of CIFAR-10. To compare with their numbers to the digit, do so, too:
    --config.data.options.test_normalisation=imagenet.
    """
    options: dict[str, Any] = {"validation": 0.1, "seed": 1, "training_size": _all()}
    if name == "cifar100":
        options["test_normalisation"] = "cifar10"
    return _trained(loss, name, options, network)


def tiny_imagenet(network: str, loss: str) -> ConfigDict:
    """Return the config of a network on Tiny ImageNet, after Mukhoti et al. 2020.

    The split is that of their paper: 90,000 images train, 10,000 validate, and the official
    validation set tests. Their program trains on all 100,000 and chooses the temperature on the
    images that it tests on, which is --config.data.options.split=released.
    """
    options = {
        "split": "papers",
        "validation_per_class": 50,
        "seed": 1,
        "training_size": _all(),
    }
    config = _trained(loss, "tiny_imagenet", options, network)
    config.num_epochs = 100
    config.batch_size = 64
    config.schedule.milestones = (40, 60)
    if loss == "brier":
        config.optimiser.learning_rate = 0.035
    return config


def imagenet(network: str, loss: str) -> ConfigDict:
    """Return the config of a network on ImageNet, after Goyal et al. 2017.

    90 epochs in batches of 256, rate 0.1 with Nesterov momentum and drops at epochs 30, 60 and 80,
    weight decay 1e-4, a mean over the batch, no clipping. For another batch size they change the
    rate in proportion: 0.8 for 2,048.

    What differs from theirs: they warm up only from rate 0.1 to larger ones, here the first five
    epochs always begin with a fifth of the rate; they spare batch norm the weight decay, which
    here is on every parameter, as it is in the calibration papers' recipe; and the last scale of
    each of their residual blocks is 0 at first.
    """
    options = {
        "held_out": "train",
        "validation_per_class": 50,
        "seed": 1,
        "size": 224,
        "resize": 256,
    }
    config = _trained(loss, "imagenet", options, network)
    config.num_epochs = 90
    config.batch_size = 256
    config.loss.reduction = "mean"
    config.warm_up_loss.reduction = "mean"
    config.optimiser.nesterov = True
    config.optimiser.weight_decay = 1e-4
    config.optimiser.clip_norm = 0.0
    config.schedule.milestones = (30, 60, 80)
    config.schedule.warm_up_epochs = 5
    return config


def _trained(loss: str, name: str, options: dict[str, Any], network: str) -> ConfigDict:
    """Let the base config be of a data set and a network."""
    config = base(loss)
    config.data.name = name
    config.data.options = ConfigDict(options)
    config.model.name = network
    config.model.options = ConfigDict({"dtype": "float32"})
    return config


def _all() -> Any:
    """Say that all images train, where a number may be given."""
    return config_dict.placeholder(int)
