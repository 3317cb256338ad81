"""Training: one loop for every objective, on any number of devices.

    fit(folder, state, task, plan)     train, log, checkpoint, resume
    Programs(task, plan)               the compiled programs, which several seeds share
    make_train_step, make_eval_step    the steps, for a custom loop
    data_parallel, replicate, ...      run a step on several devices
    optimizer, schedule                by name; also `OPTIMIZERS` and `SCHEDULES`
    tensorboard, wandb                 writers of the logged rows; also `WRITERS`
    grouped                            an optimizer with groups of parameters

The network, the objective, the metrics and the optimizer are passed as values.
"""

from calib_jax.core import checks as _checks
from calib_jax.train.checkpoint import AnotherConfig as AnotherConfig
from calib_jax.train.checkpoint import CannotWrite as CannotWrite
from calib_jax.train.checkpoint import Checkpoints as Checkpoints
from calib_jax.train.checkpoint import InUse as InUse
from calib_jax.train.checkpoint import check_ours as check_ours
from calib_jax.train.checkpoint import differences as differences
from calib_jax.train.checkpoint import identity_of as identity_of
from calib_jax.train.checkpoint import only_one as only_one
from calib_jax.train.feeds import Order as Order
from calib_jax.train.feeds import Resident as Resident
from calib_jax.train.feeds import Streamed as Streamed
from calib_jax.train.feeds import class_balanced as class_balanced
from calib_jax.train.feeds import feed as feed
from calib_jax.train.feeds import in_batches as in_batches
from calib_jax.train.feeds import steps_per_epoch as steps_per_epoch
from calib_jax.train.forward import Forward as Forward
from calib_jax.train.forward import LastLayer as LastLayer
from calib_jax.train.forward import Nnx as Nnx
from calib_jax.train.forward import NnxFactory as NnxFactory
from calib_jax.train.forward import init_variables as init_variables
from calib_jax.train.forward import linen as linen
from calib_jax.train.forward import nnx as nnx
from calib_jax.train.log import WRITERS as WRITERS
from calib_jax.train.log import MakeWriter as MakeWriter
from calib_jax.train.log import Writer as Writer
from calib_jax.train.log import last_table as last_table
from calib_jax.train.log import read_rows as read_rows
from calib_jax.train.log import tensorboard as tensorboard
from calib_jax.train.log import wandb as wandb
from calib_jax.train.loop import NonFinite as NonFinite
from calib_jax.train.loop import fit as fit
from calib_jax.train.optimizers import OPTIMIZERS as OPTIMIZERS
from calib_jax.train.optimizers import grouped as grouped
from calib_jax.train.optimizers import optimizer as optimizer
from calib_jax.train.pmap import AXIS as AXIS
from calib_jax.train.pmap import Devices as Devices
from calib_jax.train.pmap import all_devices as all_devices
from calib_jax.train.pmap import data_parallel as data_parallel
from calib_jax.train.pmap import first as first
from calib_jax.train.pmap import local_devices as local_devices
from calib_jax.train.pmap import replicate as replicate
from calib_jax.train.pmap import split as split
from calib_jax.train.predict import Predicted as Predicted
from calib_jax.train.predict import check_replaceable as check_replaceable
from calib_jax.train.predict import predict as predict
from calib_jax.train.predict import predict_all as predict_all
from calib_jax.train.predict import predict_blocks as predict_blocks
from calib_jax.train.predict import read_blocks as read_blocks
from calib_jax.train.predict import write_blocks as write_blocks
from calib_jax.train.programs import Programs as Programs
from calib_jax.train.programs import label_out_of_range as label_out_of_range
from calib_jax.train.schedules import SCHEDULES as SCHEDULES
from calib_jax.train.schedules import of_steps as of_steps
from calib_jax.train.schedules import schedule as schedule
from calib_jax.train.schedules import warmed_up as warmed_up
from calib_jax.train.state import Batch as Batch
from calib_jax.train.state import Outcome as Outcome
from calib_jax.train.state import Plan as Plan
from calib_jax.train.state import Sampling as Sampling
from calib_jax.train.state import Task as Task
from calib_jax.train.state import TrainState as TrainState
from calib_jax.train.state import create as create
from calib_jax.train.state import shuffled as shuffled
from calib_jax.train.step import make_eval_step as make_eval_step
from calib_jax.train.step import make_train_step as make_train_step

_checks.export(__name__)
