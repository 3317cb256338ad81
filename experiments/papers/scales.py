"""The sizes at which an entry runs: as in its file, on digits in seconds, or on an accelerator."""

import dataclasses

from experiments.papers.entry import Entry, Training

# Two epochs of a small network on digits, with everything that the CIFAR config logs.
TOY = {
    "model.options.hidden": (8,),
    "num_epochs": 2,
    "diagnose": True,
    "evaluate_test": True,
    "run.keep_every_epochs": 1,
}
# The papers' recipe with 30 of its 350 epochs; the learning rate drops at the same shares of them.
SHORT_EPOCHS, SHORT_MILESTONES = 30, (13, 21)
SHORT = {"num_epochs": SHORT_EPOCHS, "schedule.milestones": SHORT_MILESTONES}
# ResNet-8 with four times the channels, on all images with augmentation, as the papers train. A run
# takes minutes on one accelerator, and ResNet-50 takes ten times as long.
WIDE = {
    "model.options.width": 64,
    "data.options.training_size": 45_000,
    "augment": True,
    "evaluate_test": False,
    "diagnose": False,
    "run.keep_every_epochs": 0,
    **SHORT,
}
# Whole recipes of the papers, which a processor does not finish.
LARGE = ("resnet50", "resnet110", "wide_resnet26_10", "densenet121")
# The same program in seconds: a small network, few images and one epoch.
TINY = {
    "num_epochs": 1,
    "schedule.milestones": (1,),
    "batch_size": 16,
    "model.options.width": 4,
    "data.options.training_size": 32,
    "diagnose": False,
    "run.keep_every_epochs": 0,
}


def is_large(training: Training) -> bool:
    """Check whether a training is a whole recipe of the papers.

    >>> is_large(Training("focal", config="cifar10_densenet121")), is_large(Training("focal"))
    (True, False)
    """
    return not training.changes and training.config.partition("_")[2] in LARGE


def at(entry: Entry, scale: str, precision: str = "bfloat16") -> Entry:
    """Return the entry with its runs at a scale; "cpu" are its runs as they stand in its file.

    Args:
      entry: the entry.
      scale: toy, cpu, gpu or tiny; "tiny" tries "gpu" in seconds.
      precision: the precision of the layers on an accelerator, bfloat16 or float32.
    """
    if scale == "cpu" or not entry.runs:
        return entry
    trainings = {
        name: _toy(training) if scale == "toy" else on_gpu(training, scale, precision)
        for name, training in entry.runs.items()
    }
    return dataclasses.replace(entry, runs=trainings)


def _toy(training: Training) -> Training:
    return Training(
        training.loss,
        training.options,
        "digits",
        TOY,
        "toy",
        seeds=min(training.seeds, 2),
        keep=training.keep,
    )


def on_gpu(training: Training, scale: str = "gpu", precision: str = "bfloat16") -> Training:
    """Return a training with a wide ResNet-8, or a network of the papers, in a short schedule.

    LeNet-5 keeps its recipe. "tiny" has a small network, and few images, for all.
    """
    if scale == "tiny":
        config, sized, name = "cifar10_resnet8", TINY, "tiny"
    elif training.config == "cifar10_lenet5":
        config, sized, name = training.config, {}, "whole"
    elif training.config == "cifar10_resnet8":
        config, sized, name = training.config, WIDE, f"wide-{SHORT_EPOCHS}epochs"
    else:
        config, sized, name = training.config, SHORT, f"{SHORT_EPOCHS}epochs"
    # Here one run, with its diagnosis, serves all entries.
    changes = {key: value for key, value in training.changes.items() if key != "diagnose"}
    kept = dataclasses.replace(training, options={}).variant if changes else ""
    return dataclasses.replace(
        training,
        config=config,
        changes={**changes, **sized, "precision": precision},
        alias="-".join([name, precision, *[kept] * bool(kept)]),
        seeds=min(training.seeds, 2) if scale == "tiny" else training.seeds,
    )
