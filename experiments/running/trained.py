"""Trained networks: restored from the folders of their runs, and their predictions."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from calib_jax import train
from calib_jax.core.examples import Source
from experiments.reports import evaluation_record
from experiments.running import building, cli, finished, imports, initial, subword_files


class Trained(NamedTuple):
    """A network, either trained or with given weights, and the folder of the results.

    Attributes:
      folder: the folder of the run, or a new one for given weights.
      state: the train state, on the host.
      checkpoint: the name of the checkpoint; empty for given weights.
      source: the given weights.
    """

    folder: pathlib.Path
    state: train.TrainState
    checkpoint: str = ""
    source: str = ""

    @property
    def weights(self) -> evaluation_record.Evaluated:
        """The weights that made the predictions."""
        step = int(self.state.step)
        return evaluation_record.Evaluated(self.checkpoint or self.source, step)

    def begin(self) -> None:
        """Remove the marks and values of an evaluation of other weights."""
        evaluation_record.begin(self.folder, self.weights)

    def record(self, parts: Iterable[str] = ()) -> dict[str, Any]:
        """Write and return the record of the weights that made the predictions."""
        record = evaluation_record.write(self.folder, self.weights, parts)
        of_weights = {"checkpoint": str(self.weights)} if self.checkpoint else {}
        return of_weights | record["provenance"]


def restored(
    folders: Iterable[pathlib.Path],
    checkpoint: str | None,
    *,
    data_dir: str | None = None,
    allow_imports: bool = False,
) -> tuple[building.Experiment, list[Trained]]:
    """Restore one checkpoint per seed, and build the experiment of the shared config."""
    experiment: building.Experiment | None = None
    trained: list[Trained] = []
    folders = list(folders)
    for folder in folders:
        with initial.opened(folder) as checkpoints:
            if len(folders) > 1 and not checkpoints.steps:  # the seed failed in its first epoch
                initial.warn(f"{folder} has no checkpoint, and is left out.")
                continue
            name = checkpoint or initial.chosen(checkpoints)
            step = initial.step_of(checkpoints, name)
            config = initial.config_of(checkpoints)
            if experiment is not None:
                same = train.differences(
                    cli.plain(experiment.config), cli.plain(config), free=finished.SEED_KEYS
                )
                if same:
                    raise ValueError(
                        f"{trained[0].folder} and {folder} are seeds of different trainings"
                        f" ({'; '.join(same[:3])}): train them alike, or evaluate them one by one."
                    )
            else:
                imports.check_allowed(config, folder, allow_imports=allow_imports)
                experiment = building.build(config, data_dir=data_dir)
                identity = experiment.identity()
            subword_files.check(folder, experiment.dataset.vocabulary)
            _check_data(folder, checkpoints.about(step)["same"], identity)
            state = checkpoints.restore(experiment.template(), step, warn=initial.warn).state
        trained.append(Trained(folder, state, name))
    if experiment is None:
        raise ValueError(f"none of the seeds in {folders[0].parent} has a checkpoint.")
    return experiment, trained


def _check_data(
    folder: pathlib.Path, saved: Mapping[str, Any], identity: Mapping[str, Any]
) -> None:
    """Raise an error if a run was trained with other data."""
    before = {"data": saved.get("data", identity["data"])}
    if changed := train.differences(before, identity):
        raise ValueError(
            f"{folder} was trained with other data ({'; '.join(changed)}): restore the data, or"
            " train anew in another folder."
        )


def predictions(
    experiment: building.Experiment,
    states: Sequence[train.TrainState],
    source: Source,
    batch_size: int = 0,
) -> train.Predicted:
    """Compute the logits of every state on a source; return them with labels and weights."""
    return train.predict_all(
        experiment.task.forward,
        states,
        source,
        prepare=experiment.dataset.prepare,
        batch_size=batch_size or experiment.plan.batch_size,
        # This machine may have fewer devices than the training machine.
        devices=train.local_devices()[: experiment.config.run.num_devices or None],
    )
