"""Train the seeds of an experiment in their folders, or resume them: for train and sweep."""

import pathlib
from collections.abc import Mapping
from typing import Any

from calib_jax import train
from experiments.running import building, cli, data_identity, provenance, resuming


def fit(
    experiment: building.Experiment, folders: Mapping[int, pathlib.Path], **options: Any
) -> list[train.Outcome]:
    """Train one run per seed, and convert errors to the exit codes of `cli`.

    Args:
      experiment: the experiment; call `experiment.check_memory` first.
      folders: the folder of each seed.
      options: further options of `train.fit_all`: quiet, progress, writers, profile, environment.
    """
    config = experiment.config
    devices = cli.refusing(building.devices, config)
    runs = cli.failing(cli.refusing, experiment.runs, folders)
    cli.refusing(data_identity.keep, folders.values(), config, experiment.dataset)
    options = {
        "free": resuming.free(experiment),
        "environment": provenance.describe() | {"num_bins": config.num_bins},
        "devices": devices,
        "over": config.run.over,
    } | options
    outcomes: list[train.Outcome] = cli.failing(
        train.fit_all, runs, experiment.task, experiment.plan, **options
    )
    return outcomes
