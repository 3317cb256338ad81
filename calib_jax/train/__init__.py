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

from typing import TYPE_CHECKING, Any

from calib_jax.core.names import no_attribute
from calib_jax.train.devices.memory import DoesNotFit, check_states
from calib_jax.train.devices.parallel import (
    AXIS,
    Devices,
    all_devices,
    data_parallel,
    first,
    local_devices,
    replicate,
    split,
)
from calib_jax.train.feeds.feed import feed
from calib_jax.train.feeds.ordering import (
    Order,
    Sampling,
    class_balanced,
    in_batches,
    shuffled,
    steps_per_epoch,
)
from calib_jax.train.feeds.prediction import Predicted, predict, predict_all
from calib_jax.train.feeds.prediction_blocks import (
    check_replaceable,
    predict_blocks,
    read_blocks,
    write_blocks,
)
from calib_jax.train.feeds.resident import Resident
from calib_jax.train.feeds.streamed import Streamed
from calib_jax.train.folder.changes import AnotherConfig, differences
from calib_jax.train.folder.checkpoint import Checkpoints
from calib_jax.train.folder.files import CannotWrite
from calib_jax.train.folder.journal import last_table
from calib_jax.train.folder.lock import InUse
from calib_jax.train.folder.writers import WRITERS, MakeWriter, Writer, tensorboard, wandb
from calib_jax.train.loop.arrangement import ARRANGEMENTS, Arrangement
from calib_jax.train.loop.plan import Outcome, Plan, Run, Task
from calib_jax.train.loop.start import NonFinite, fit, fit_all
from calib_jax.train.optim.groups import grouped
from calib_jax.train.optim.optimizers import OPTIMIZERS, optimizer
from calib_jax.train.optim.schedules import SCHEDULES, of_steps, schedule, warmed_up
from calib_jax.train.step.diagnosis import label_out_of_range
from calib_jax.train.step.forward import Forward, Nnx, NnxFactory, init_variables, linen, nnx
from calib_jax.train.step.last_layer import LastLayer
from calib_jax.train.step.state import TrainState, create
from calib_jax.train.step.step import Batch, make_eval_step, make_train_step

__all__ = [
    "ARRANGEMENTS",
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
    "check_replaceable",
    "check_states",
    "class_balanced",
    "create",
    "data_parallel",
    "differences",
    "feed",
    "first",
    "fit",
    "fit_all",
    "grouped",
    "in_batches",
    "init_variables",
    "label_out_of_range",
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


if not TYPE_CHECKING:  # type checkers see all names above and report unknown ones

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
