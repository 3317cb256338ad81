"""Recipes of the image data sets for any network, as changes to `base`.

The config of a network calls one of these functions, then changes what differs for this network or
one of the losses.
"""

from typing import Any

from ml_collections import ConfigDict, config_dict

from configs.losses import base


def cifar(name: str, network: str, loss: str) -> ConfigDict:
    """Return the config of a network on CIFAR-10 or CIFAR-100: the recipe of `base`.

    One epoch is 352 steps. The learning rate drops at the epochs of the paper of Mukhoti et al.
    2020, as in the code of Ghosh et al. 2022 and Lin et al. 2025. The code of Mukhoti et al. drops
    it one epoch earlier: --config.schedule.milestones="(149, 249)".

    The code of Mukhoti et al. normalises the test images of CIFAR-100 by the statistics of
    ImageNet, and all others by those of CIFAR-10. For an exact comparison with their numbers, set
    --config.data.options.test_normalization=imagenet.
    """
    options: dict[str, Any] = {"validation": 0.1, "seed": 1, "training_size": _all()}
    if name == "cifar100":
        options["test_normalization"] = "cifar10"
    return _trained(loss, name, options, network)


def tiny_imagenet(network: str, loss: str) -> ConfigDict:
    """Return the config of a network on Tiny ImageNet, after Mukhoti et al. 2020.

    The split is that of their paper: 90,000 images for training, 10,000 for validation, and the
    official validation set for test. Their code trains on all 100,000 and chooses the temperature
    on the test images: --config.data.options.split=released. The scheduled gammas of their focal
    loss (flsc531, flsc532) change at epochs 30 and 70.
    """
    options = {"split": "papers", "validation_per_class": 50, "seed": 1, "training_size": _all()}
    config = _trained(loss, "tiny_imagenet", options, network)
    config.num_epochs = 100
    config.batch_size = 64
    config.schedule.milestones = (40, 60)
    if loss == "brier":
        config.optimizer.learning_rate = 0.035
    if loss.startswith("flsc"):
        config.loss.options.milestones = (30, 70)
    return config


def imagenet(network: str, loss: str) -> ConfigDict:
    """Return the config of a network on ImageNet, after Goyal et al. 2017.

    90 epochs in batches of 256, learning rate 0.1 with Nesterov momentum and drops at epochs 30, 60
    and 80, weight decay 1e-4, the mean over the batch, no clipping. They scale the learning rate
    with the batch size: 0.8 for 2,048.

    Three things differ. They warm up only for learning rates above 0.1, starting from 0.1; here the
    first five epochs always warm up from a fifth of the learning rate. They exclude batch norm from
    weight decay; here it applies to every parameter, as in the calibration papers. They initialise
    the last scale of each residual block to 0.
    """
    options: dict[str, Any] = {"held_out": "train", "validation_per_class": 50, "seed": 1}
    options |= {"size": 224, "resize": 256}
    config = _trained(loss, "imagenet", options, network, **_MEAN)
    config.num_epochs = 90
    config.batch_size = 256
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 1e-4
    config.schedule.milestones = (30, 60, 80)
    config.schedule.warm_up_epochs = 5
    return config


def scenes(name: str, network: str, loss: str) -> ConfigDict:
    """Return the config of a network on scenes with classes of pixels, after Tian et al. 2021.

    Adam with a constant learning rate, batches of 6 without the last part of an epoch, the mean
    over the pixels that have a class. The released code also skips batches of one or two images.
    """
    config = _trained(loss, name, {}, network, **_MEAN)
    config.model.options = ConfigDict({"dropout": 0.5, "resizing": "align_corners"})
    config.metrics = ("error", "nll", "ece", "mean_iou", "mean_recall", "mean_precision")
    config.batch_size = 6
    config.drop_last = True
    config.optimizer.name = "adam"
    config.optimizer.weight_decay = 0.0
    config.schedule.name = "constant"
    return config


def long_tail(name: str, network: str, loss: str) -> ConfigDict:
    """Return the config of a network on long-tailed photographs, after Tian et al. 2021."""
    config = _trained(loss, name, {"size": 224, "resize": 256}, network, **_MEAN)
    config.batch_size = 128
    config.optimizer.groups = ()
    config.schedule.name = "cosine"
    return config


_MEAN: dict[str, Any] = {"reduction": "mean", "clip_norm": 0.0}


def _trained(
    loss: str, name: str, options: dict[str, Any], network: str, **reduced: Any
) -> ConfigDict:
    """Return the base config with a data set and a network."""
    config = base(loss, **reduced)
    config.data.name = name
    config.data.options = ConfigDict(options)
    config.model.name = network
    return config


def _all() -> Any:
    """Return a placeholder for training_size: None by default, which uses all images."""
    return config_dict.placeholder(int)
