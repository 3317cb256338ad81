"""Measure a trained network: its predictions as files, and the score report with calibration.

    python -m experiments.evaluate --workdir=/tmp/digits
    python -m experiments.evaluate --workdir=/tmp/digits --checkpoint=best_nll
    python -m experiments.evaluate --workdir=/tmp/digits --calibrate=vector --per_class

--checkpoint is latest, best_NAME for a metric that the run kept the best of (error, nll, ece), or
the number of a step. The folder gets predictions_validation.npz and predictions_test.npz (logits,
labels), for experiments.score or for anything else; and the folder report: tables and pictures of
the test set, before and after a calibrator that was fitted on the validation set.
"""

import pathlib
import sys
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from calib_jax import report, train
from experiments import building, cli

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
flags.adopt_module_key_flags(building)  # --data_dir
_CHECKPOINT = flags.DEFINE_string("checkpoint", "latest", "latest, best_NAME, or a step.")
_CALIBRATE = flags.DEFINE_string("calibrate", "temperature", "Calibrator; empty for none.")
_OBJECTIVE = flags.DEFINE_string(
    "objective", "nll", "What a temperature is chosen by: nll, or a metric on the papers' grid."
)
_PER_CLASS = flags.DEFINE_bool("per_class", False, "Also a table per class.")
_RESAMPLES = flags.DEFINE_integer("resamples", 1000, "Of the bootstrap.")
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 0, "Examples at a time; 0 is that of training.", lower_bound=0
)


def restored(
    workdir: str, checkpoint: str, *, data_dir: str | None = None
) -> tuple[building.Experiment, train.TrainState]:
    """Read a run: what its config names, and the state of one of its checkpoints."""
    folder = pathlib.Path(workdir) / "checkpoints"
    if not folder.is_dir():
        raise ValueError(f"there is no run in {workdir}: it has no folder checkpoints.")
    checkpoints = train.Checkpoints(folder, read_only=True)
    try:
        about = checkpoints.about()
        step = _step(checkpoint, about["ledger"]["best"], checkpoints.steps)
        experiment = building.build(ConfigDict(about["config"]), data_dir=data_dir)
        template = experiment.template()
        if step is None:
            return experiment, checkpoints.latest(template, say=_warn).state
        return experiment, checkpoints.read(template, step).state
    finally:
        checkpoints.close()


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _step(checkpoint: str, best: dict[str, Any], steps: list[int]) -> int | None:
    """Find the step that a name stands for; the latest is the newest that can be read."""
    if checkpoint == "latest":
        return None
    if checkpoint.isdecimal():
        return int(checkpoint)
    names = {f"best_{name}": int(found["step"]) for name, found in best.items()}
    if checkpoint not in names:
        known = ", ".join(["latest", *names, *map(str, steps)])
        raise ValueError(f"there is no checkpoint {checkpoint!r}; this run has {known}.")
    return names[checkpoint]


def predictions(
    experiment: building.Experiment, state: train.TrainState, part: str, batch_size: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the logits of one part of the data set."""
    return train.predict(
        experiment.task.forward,
        state,
        getattr(experiment.dataset, part),
        prepare=experiment.dataset.prepare,
        batch_size=batch_size or experiment.plan.batch_size,
        # The machine need not be that of the training: at most as many devices, if it has them.
        devices=train.local_devices()[: experiment.config.run.num_devices or None],
    )


def main() -> int:
    """Evaluate."""
    if not _WORKDIR.value:
        raise cli.Refused("give --workdir=FOLDER, where the run is kept.")
    folder = pathlib.Path(_WORKDIR.value)
    experiment, state = cli.refusing(
        restored, _WORKDIR.value, _CHECKPOINT.value, data_dir=building.DATA_DIR.value
    )
    found = {}
    for part in ("validation", "test"):
        logits, labels = predictions(experiment, state, part, _BATCH_SIZE.value)
        found[part] = logits, labels
        path = folder / f"predictions_{part}.npz"
        cli.refusing(np.savez, path, logits=logits, labels=labels)
        print(f"written: {path} ({len(labels):,} examples)")
    print(f"{experiment.dataset.description}\nstep {int(state.step)} of {folder}\n")
    scored = cli.refusing(
        report.score,
        *found["test"],
        calibrate=_CALIBRATE.value or None,
        fit_on=found["validation"] if _CALIBRATE.value else None,
        objective=_OBJECTIVE.value,
        num_bins=experiment.config.num_bins,
        per_class=_PER_CLASS.value,
        num_resamples=_RESAMPLES.value,
    )
    print(scored)
    names = cli.refusing(scored.save, folder / "report")
    print(f"\nwritten to {folder / 'report'}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    cli.run(main)
