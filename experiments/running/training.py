"""Train the seeds of an experiment in their folders, or resume them: for train, sweep and map."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from calib_jax import train
from experiments.running import building, cli, provenance, resuming, subword_files


def fit(
    experiment: building.Experiment,
    folders: Mapping[int, pathlib.Path],
    *,
    environment: Mapping[str, Any] | None = None,
    quiet: bool = False,
    progress: bool = True,
    writers: Sequence[train.MakeWriter] = (),
    profile: int = 0,
) -> list[train.Outcome]:
    """Train one run per seed, one after another, and convert errors to the exit codes of `cli`.

    The seeds share the compiled programs. A run whose loss is not finite has an outcome with
    `failed`, and the others go on. A signal ends the loop: the last outcome has `stopped_by`.

    Args:
      experiment: the experiment.
      folders: the folder of each seed.
      environment: about the machine and the versions; by default `provenance.describe`.
      quiet, progress, writers, profile: as in `train.fit`.
    """
    devices = cli.refusing(building.devices, experiment.config)
    environment = provenance.describe() if environment is None else environment
    environment = {**environment, "num_bins": experiment.config.num_bins}
    programs: train.Programs | None = None
    outcomes: list[train.Outcome] = []
    for seed, folder in folders.items():
        config = cli.plain(building.of_seed(experiment.config, seed))
        # A run that resumes restores its weights; process 0 sends its state to the others.
        goes_on = any((folder / "checkpoints").glob("[0-9]*")) or jax.process_index() > 0
        state = cli.failing(cli.refusing, experiment.state, seed, given=not goes_on)
        programs = programs or cli.failing(
            cli.refusing, train.Programs, experiment.task, experiment.plan, devices
        )
        if jax.process_index() == 0 and experiment.dataset.vocabulary is not None:
            cli.failing(_keep_subwords, folder, experiment)
        outcome = cli.failing(
            train.fit,
            folder,
            jax.device_get(state),
            experiment.task,
            dataclasses.replace(experiment.plan, seed=seed),
            config=config,
            free=resuming.free(experiment),
            same=experiment.identity(),
            environment=environment,
            programs=programs,
            name=f"seed {seed}" if len(folders) > 1 else "",
            quiet=quiet,
            progress=progress,
            writers=writers,
            profile=profile,
            check=False,
        )
        outcomes.append(outcome)
        profile = 0
        if outcome.stopped_by:
            break
        if outcome.failed and len(folders) > 1 and not quiet:
            cli.say(f"seed {seed}: {outcome.failed}")
    return outcomes


def _keep_subwords(folder: pathlib.Path, experiment: building.Experiment) -> None:
    """Write the subwords of a translation into the folder of its run, once it is ours."""
    train.check_ours(folder)
    with train.only_one(folder):
        subword_files.keep(folder, experiment.dataset.vocabulary)
