"""The sizes at which an entry runs: as it stands in its file, or on digits in seconds."""

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


def at(entry: Entry, scale: str) -> Entry:
    """Return the entry with its runs at a scale; "cpu" are its runs as they stand in its file."""
    if scale == "cpu" or not entry.runs:
        return entry
    trainings = {
        name: Training(
            training.loss,
            training.options,
            "digits",
            TOY,
            "toy",
            seeds=min(training.seeds, 2),
            keep=training.keep,
        )
        for name, training in entry.runs.items()
    }
    return dataclasses.replace(entry, runs=trainings)
