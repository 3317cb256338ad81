"""Trained networks: restored from the folders of their runs, and their predictions."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax import train
from calib_jax.core.examples import Examples, Source
from experiments.evaluation import evaluation_record, finished
from experiments.evaluation.scoring import Answers
from experiments.running import building, cli, imports, initial, training


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
    experiment: building.Experiment | None = None,
) -> tuple[building.Experiment, list[Trained]]:
    """Restore one checkpoint per seed, and build the experiment of the shared config.

    Args:
      folders: the folder of each seed.
      checkpoint: the name of the checkpoint; None chooses the last one, or the best where patience
        ended the run.
      data_dir: the folder of the data sets.
      allow_imports: whether to import the code that the config names.
      experiment: the experiment of the runs, if it is built already.
    """
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
            if experiment is None:
                imports.check_allowed(config, folder, allow_imports=allow_imports)
                experiment = building.build(config, data_dir=data_dir)
            unlike = train.differences(
                cli.plain(experiment.config), cli.plain(config), free=finished.SEED_KEYS
            )
            if unlike:
                raise ValueError(
                    f"{folders[0]} and {folder} are of different trainings"
                    f" ({'; '.join(unlike[:3])}): train them alike, or evaluate them one by one."
                )
            training.check_subwords(folder, experiment.dataset.vocabulary)
            _check_data(folder, checkpoints.about(step)["same"], experiment.identity())
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


def write_predictions(
    experiment: building.Experiment,
    trained: Sequence[Trained],
    sources: Mapping[str, Source],
    batch_size: int = 0,
    *,
    unlabelled: Iterable[str] = (),
) -> list[Answers]:
    """Write the predictions of networks for several sources into their folders; return them.

    The labels must be in range, except for those of the sources in `unlabelled`.
    """
    all_answers: list[Answers] = [{} for _ in trained]
    for network in trained:
        cli.refusing(evaluation_record.begin, network.folder, network.weights)
    states = [network.state for network in trained]
    for name, source in sources.items():
        predicted = cli.failing(predictions, experiment, states, source, batch_size)
        if name not in unlabelled:
            cli.refusing(_check_labels, name, predicted, experiment.dataset.num_classes)
        for network, answers, logits in zip(trained, all_answers, predicted.logits, strict=True):
            answers[name] = predicted._replace(logits=logits)
            options = (name, answers[name], network.weights)
            cli.refusing(evaluation_record.keep, network.folder, *options)
    return all_answers


def _check_labels(name: str, predicted: train.Predicted, num_classes: int) -> None:
    """Raise an error for a label of positive weight that is out of range."""
    examples = Examples((), predicted.labels, predicted.weights)
    index = np.arange(len(predicted.labels))
    if label := train.label_out_of_range(name, examples, index, num_classes):
        raise ValueError(f"{label}: mend its label, or give it weight 0 in its Examples.")
