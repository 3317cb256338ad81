"""The runs of a sweep: one for each loss and seed."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from calib_jax import train
from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.train import checkpoint, log
from experiments.evaluation import evaluation_record, finished
from experiments.reports import summary
from experiments.running import building, cli, imports, initial, training


class Member(NamedTuple):
    """One run of a sweep.

    Attributes:
      loss, seed: the loss and the seed.
      experiment: the experiment of the loss.
      folder: the folder of the run.
      asked: the requested checkpoint; None for the one that `initial.chosen` chooses.
    """

    loss: str
    seed: int
    experiment: building.Experiment
    folder: pathlib.Path
    asked: str | None

    @property
    def name(self) -> str:
        """The name of the run in messages."""
        return f"{self.loss} seed {self.seed}"

    @property
    def config(self) -> dict[str, Any]:
        """The config of the run, as JSON."""
        return cli.plain(building.of_seed(self.experiment.config, self.seed))

    def result(self) -> dict[str, Any]:
        """Read the file that a finished run writes; empty if it is missing or damaged."""
        path = self.folder / evaluation_record.OF_SWEEP
        try:
            record = reading.json_mapping(path, "a result", "it is written again")
        except FileNotFoundError:
            return {}
        except reading.Unreadable as error:
            initial.warn(str(error))
            return {}
        return record if isinstance(record.get("config"), dict) else {}

    def check(self) -> None:
        """Raise an error if the folder holds a finished run that cannot go on with this config."""
        before = self.result().get("config", self.config)
        rows = log.read_rows(self.folder / log.ROWS)
        step = rows[-1]["step"] if rows else 0
        free = training.free(self.experiment)(before, self.config, step)
        if keys := checkpoint.differences(before, self.config, free=free):
            raise ValueError(
                f"{self.folder} holds a run of a sweep of another config"
                f" ({checkpoint.listed(keys)}): choose another folder, or use the old values."
            )
        name = (self.asked or "latest").removeprefix("best_")
        if name not in ("latest", *before.get("best", {})):
            raise ValueError(
                f"{self.name} has not kept best_{name}: give --checkpoint=best_{name} in a new"
                " folder, from the start."
            )

    def is_complete(self, logits: str, criteria: Sequence[str]) -> bool:
        """Check that the run is trained, and evaluated as requested.

        Args:
          logits: "keep" if the table needs the predictions.
          criteria: the criteria of the temperatures.
        """
        result, free = self.result(), training.MEASURED
        if not result or result.get("asked", "") != self.asked:
            return False
        if train.differences(result["config"], self.config, free=free):
            return False  # a changed key, such as num_epochs or patience, may prolong it
        try:
            streamed = self.read().streamed
            if streamed and logits != "keep":
                streamed.check_table(self.name, criteria, self.experiment.config.num_bins)
        except (OSError, ValueError) as error:
            initial.warn(f"{cli.sentence(error)} It is written again.")
            return False
        return not streamed or logits != "keep"

    def read(self) -> summary.Run:
        """Read the predictions or the streamed values of the run, and its log."""
        return finished.read_run(self.loss, self.seed, self.folder, self.experiment.config)


def members(
    folder: pathlib.Path, file: str, losses: Sequence[str], num_seeds: int, asked: str | None
) -> list[Member]:
    """List the runs of a sweep, and raise an error for unknown names before any run begins.

    Args:
      folder: the folder of the sweep.
      file: the file of the config.
      losses: the losses.
      num_seeds: the number of seeds of each loss.
      asked: the requested checkpoint.
    """
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    requested, data_dir = [], building.DATA_DIR.value
    read: dict[str, Any] = {}  # the data sets, which losses share
    for loss in losses:
        config = _config_of(file, loss, overrides, asked or "latest")
        key = json.dumps([config.data.name, cli.plain(config.data.options)])
        if key not in read:
            read[key] = building.data_set(config.data.name, config.data.options, data_dir)
        experiment = building.assemble(config, read[key])._replace(data_dir=data_dir)
        for note in building.unused(config, overrides):
            cli.say_once(f"note: {note}.")
        checks.seed(config.seed, num_seeds)
        for seed in range(config.seed, config.seed + num_seeds):
            place = folder / "runs" / loss / str(seed)
            requested.append(Member(loss, seed, experiment, place, asked))
    for member in requested:
        member.check()
    missing = next((member for member in requested if not member.result()), None)
    if missing is not None and missing.experiment.config.init_from:
        missing.experiment.state()  # raises if the weights do not fit the network
    return requested


def _config_of(file: str, loss: str, overrides: Mapping[str, Any], name: str) -> ConfigDict:
    """Load the config file for one loss, and apply the overrides of the command line."""
    config = imports.config_of(file, loss)
    for key, flag in {"loss.name": "losses", "num_seeds": "seeds"}.items():
        if key in overrides:
            raise ValueError(f"a sweep takes --{flag}, and not --config.{key}.")
    try:
        config.update_from_flattened_dict(overrides)
    except (KeyError, AttributeError) as error:
        raise ValueError(f"for the loss {loss!r}, {cli.sentence(error)}") from error
    config.init_from = building.INIT_FROM.value or config.init_from
    # A sweep resumes whole runs, so a run is saved only when it ends or is stopped.
    config.run.checkpoint_every_epochs = 0
    # Keep only the best checkpoints that patience and --checkpoint need.
    best = building.best_of(config)
    checks.one_of("--checkpoint", name, ["latest", *(f"best_{metric}" for metric in best)])
    wanted = {name.removeprefix("best_"), config.patience_for if config.patience else ""}
    config.best = ConfigDict({metric: best[metric] for metric in best if metric in wanted})
    return config
