"""Training: one loop for every objective, on any number of devices.

    fit(folder, state, task, plan)     train, log, checkpoint, resume
    fit_all(runs, task, plan)          several runs in one program
    make_train_step, make_eval_step    the steps, for a custom loop
    data_parallel, replicate, ...      run a step on several devices
    optimizer, schedule                by name; also `OPTIMIZERS` and `SCHEDULES`
    tensorboard, wandb                 writers of the logged rows; also `WRITERS`
    grouped                            an optimizer with groups of parameters

The network, the objective, the metrics and the optimizer are passed as values.
"""

from typing import Any

from calib_jax.core.names import no_attribute
from calib_jax.train.arrangement import Arrangement
from calib_jax.train.changes import AnotherConfig, differences
from calib_jax.train.checkpoint import Checkpoints
from calib_jax.train.feeding import feed
from calib_jax.train.files import CannotWrite
from calib_jax.train.forward import Forward, Nnx, NnxFactory, init_variables, linen, nnx
from calib_jax.train.groups import grouped
from calib_jax.train.journal import last_table
from calib_jax.train.last_layer import LastLayer
from calib_jax.train.lock import InUse
from calib_jax.train.memory import DoesNotFit
from calib_jax.train.optimizers import OPTIMIZERS, optimizer
from calib_jax.train.ordering import (
    Order,
    Sampling,
    class_balanced,
    in_batches,
    shuffled,
    steps_per_epoch,
)
from calib_jax.train.parallel import (
    AXIS,
    Devices,
    all_devices,
    data_parallel,
    differing,
    first,
    local_devices,
    replicate,
    split,
)
from calib_jax.train.plan import Outcome, Plan, Run, Task
from calib_jax.train.prediction import Predicted, predict, predict_all
from calib_jax.train.prediction_blocks import predict_blocks, read_blocks, write_blocks
from calib_jax.train.resident import Resident
from calib_jax.train.schedules import SCHEDULES, of_steps, schedule, warmed_up
from calib_jax.train.start import NonFinite, fit, fit_all
from calib_jax.train.state import TrainState, create
from calib_jax.train.step import Batch, make_eval_step, make_train_step
from calib_jax.train.streamed import Streamed
from calib_jax.train.writers import WRITERS, MakeWriter, Writer, tensorboard, wandb

__all__ = [
    "AXIS",
    "OPTIMIZERS",
    "SCHEDULES",
    "WRITERS",
    "AnotherConfig",
    "Arrangement",
    "Batch",
    "CannotWrite",
    "Checkpoints",
    "Devices",
    "DoesNotFit",
    "Forward",
    "InUse",
    "LastLayer",
    "MakeWriter",
    "Nnx",
    "NnxFactory",
    "NonFinite",
    "Order",
    "Outcome",
    "Plan",
    "Predicted",
    "Resident",
    "Run",
    "Sampling",
    "Streamed",
    "Task",
    "TrainState",
    "Writer",
    "all_devices",
    "class_balanced",
    "create",
    "data_parallel",
    "differences",
    "differing",
    "feed",
    "first",
    "fit",
    "fit_all",
    "grouped",
    "in_batches",
    "init_variables",
    "last_table",
    "linen",
    "local_devices",
    "make_eval_step",
    "make_train_step",
    "nnx",
    "of_steps",
    "optimizer",
    "predict",
    "predict_all",
    "predict_blocks",
    "read_blocks",
    "replicate",
    "schedule",
    "shuffled",
    "split",
    "steps_per_epoch",
    "tensorboard",
    "wandb",
    "warmed_up",
    "write_blocks",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


def __getattr__(name: str) -> Any:
    raise no_attribute(__name__, name, __all__)
