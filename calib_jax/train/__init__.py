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

from calib_jax.core import names as _names
from calib_jax.train.devices.memory import DoesNotFit as DoesNotFit
from calib_jax.train.devices.memory import check_states as check_states
from calib_jax.train.devices.parallel import AXIS as AXIS
from calib_jax.train.devices.parallel import Devices as Devices
from calib_jax.train.devices.parallel import all_devices as all_devices
from calib_jax.train.devices.parallel import data_parallel as data_parallel
from calib_jax.train.devices.parallel import first as first
from calib_jax.train.devices.parallel import local_devices as local_devices
from calib_jax.train.devices.parallel import replicate as replicate
from calib_jax.train.devices.parallel import split as split
from calib_jax.train.feeds.feed import feed as feed
from calib_jax.train.feeds.ordering import Order as Order
from calib_jax.train.feeds.ordering import Sampling as Sampling
from calib_jax.train.feeds.ordering import class_balanced as class_balanced
from calib_jax.train.feeds.ordering import in_batches as in_batches
from calib_jax.train.feeds.ordering import shuffled as shuffled
from calib_jax.train.feeds.ordering import steps_per_epoch as steps_per_epoch
from calib_jax.train.feeds.prediction import Predicted as Predicted
from calib_jax.train.feeds.prediction import predict as predict
from calib_jax.train.feeds.prediction import predict_all as predict_all
from calib_jax.train.feeds.prediction_blocks import check_replaceable as check_replaceable
from calib_jax.train.feeds.prediction_blocks import predict_blocks as predict_blocks
from calib_jax.train.feeds.prediction_blocks import read_blocks as read_blocks
from calib_jax.train.feeds.prediction_blocks import write_blocks as write_blocks
from calib_jax.train.feeds.resident import Resident as Resident
from calib_jax.train.feeds.streamed import Streamed as Streamed
from calib_jax.train.folder.changes import AnotherConfig as AnotherConfig
from calib_jax.train.folder.changes import differences as differences
from calib_jax.train.folder.checkpoint import Checkpoints as Checkpoints
from calib_jax.train.folder.files import CannotWrite as CannotWrite
from calib_jax.train.folder.journal import last_table as last_table
from calib_jax.train.folder.lock import InUse as InUse
from calib_jax.train.folder.writers import WRITERS as WRITERS
from calib_jax.train.folder.writers import MakeWriter as MakeWriter
from calib_jax.train.folder.writers import Writer as Writer
from calib_jax.train.folder.writers import tensorboard as tensorboard
from calib_jax.train.folder.writers import wandb as wandb
from calib_jax.train.loop.arrangement import ARRANGEMENTS as ARRANGEMENTS
from calib_jax.train.loop.arrangement import Arrangement as Arrangement
from calib_jax.train.loop.plan import Outcome as Outcome
from calib_jax.train.loop.plan import Plan as Plan
from calib_jax.train.loop.plan import Run as Run
from calib_jax.train.loop.plan import Task as Task
from calib_jax.train.loop.start import NonFinite as NonFinite
from calib_jax.train.loop.start import fit as fit
from calib_jax.train.loop.start import fit_all as fit_all
from calib_jax.train.optim.groups import grouped as grouped
from calib_jax.train.optim.optimizers import OPTIMIZERS as OPTIMIZERS
from calib_jax.train.optim.optimizers import optimizer as optimizer
from calib_jax.train.optim.schedules import SCHEDULES as SCHEDULES
from calib_jax.train.optim.schedules import of_steps as of_steps
from calib_jax.train.optim.schedules import schedule as schedule
from calib_jax.train.optim.schedules import warmed_up as warmed_up
from calib_jax.train.step.diagnosis import label_out_of_range as label_out_of_range
from calib_jax.train.step.forward import Forward as Forward
from calib_jax.train.step.forward import Nnx as Nnx
from calib_jax.train.step.forward import NnxFactory as NnxFactory
from calib_jax.train.step.forward import init_variables as init_variables
from calib_jax.train.step.forward import linen as linen
from calib_jax.train.step.forward import nnx as nnx
from calib_jax.train.step.last_layer import LastLayer as LastLayer
from calib_jax.train.step.state import TrainState as TrainState
from calib_jax.train.step.state import create as create
from calib_jax.train.step.step import Batch as Batch
from calib_jax.train.step.step import make_eval_step as make_eval_step
from calib_jax.train.step.step import make_train_step as make_train_step

_names.export(__name__)
