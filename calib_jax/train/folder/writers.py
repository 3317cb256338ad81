"""Writers: the rows of evaluations, sent to other programs as they are logged.

    train.fit(folder, state, task, plan, writers=[train.tensorboard])
    train.fit(..., writers=[functools.partial(train.wandb, project="digits")])

A custom writer is a function of the folder and the config of a run that returns an object with
`write(step, values)` and `close()`:

    class Printer:
        def write(self, step, values): print(step, values["train_loss"])
        def close(self): pass

    train.fit(..., writers=[lambda folder, config: Printer()])

A run that resumes opens its writers again and may write a step twice. Only process 0 writes.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable


@runtime_checkable
class Writer(Protocol):
    """The receiver of the rows of one run."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Receive the row of an evaluation: numbers by name, such as "validation_nll"."""

    def close(self) -> None:
        """Flush and close; called once, also if the run fails."""


MakeWriter: TypeAlias = Callable[[Path, Mapping[str, Any]], Writer]


def tensorboard(folder: Path, config: Mapping[str, Any]) -> Writer:
    """Write TensorBoard events to FOLDER/tensorboard; needs tensorboardX.

    Args:
      folder: the folder of the run.
      config: not used.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ModuleNotFoundError(
            "the writer tensorboard needs tensorboardX: pip install 'calib_jax[tensorboard]'."
        ) from error
    return _TensorBoard(SummaryWriter(str(folder / "tensorboard")))


def wandb(folder: Path, config: Mapping[str, Any], **options: Any) -> Writer:
    """Send rows to Weights & Biases; needs wandb, and an account or WANDB_MODE=offline.

    The W&B run has the name of the folder. A run that resumes in the same folder continues the same
    W&B run.

    Args:
      folder: the folder of the run.
      config: the config of the run.
      options: further options of `wandb.init`, such as `project`.
    """
    try:
        import wandb
    except ImportError as error:
        raise ModuleNotFoundError(
            "the writer wandb needs wandb: pip install 'calib_jax[wandb]'."
        ) from error
    run_id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    usual = {"id": run_id, "name": folder.name, "dir": str(folder), "resume": "allow"}
    # Several runs may be open at once.
    several = {"reinit": "create_new"}
    return _WandB(wandb.init(config=dict(config), **{**usual, **several, **options}))


WRITERS: Mapping[str, MakeWriter] = {"tensorboard": tensorboard, "wandb": wandb}


class _TensorBoard:
    def __init__(self, events: Any) -> None:
        self._events = events

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def close(self) -> None:
        self._events.close()


class _WandB:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
