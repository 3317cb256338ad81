"""Runs in several processes: the flags of `jax.distributed`, and its start and end.

JAX monitors the processes. When one is killed or stops, JAX ends the others, by an error from a
collective or by the heartbeat, which aborts from C++. An absent coordinator or process aborts after
the time limit, too.
"""

import contextlib
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from experiments.running import cli

_COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "HOST:PORT of process 0 of a run in several processes, the same in all: an address of its"
    " machine that the others reach, and any free port there. Several on one machine with GPUs:"
    " give each its own by CUDA_VISIBLE_DEVICES.",
)
_COUNT = flags.DEFINE_integer(
    "num_processes", None, "How many processes the run has, the same in all; 1 is no such run."
)
_PROCESS = flags.DEFINE_integer(
    "process_id", None, "Index of this process: 0, 1, ... below --num_processes."
)

_TIME_LIMITS: dict[str, Any] = {
    "initialization_timeout": 60,
    "heartbeat_timeout_seconds": 40,  # JAX detects a killed or stopped process within this time
    "shutdown_timeout_seconds": 600,  # at the end all wait for process 0, which writes a report
}


@contextlib.contextmanager
def begin(same: Any) -> Iterator[None]:
    """Join a run if flags or a cluster request it, before JAX initialises the devices.

    At the end of the body the processes wait for one another. After an error this process ends
    without waiting, and JAX ends the others.

    Args:
      same: JSON that must be equal in all processes, such as the config.
    """
    values = {flag.name: flag.value for flag in (_COORDINATOR, _COUNT, _PROCESS)}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    missing = " and ".join(f"--{name}" for name, value in values.items() if value is None)
    if given == ["--num_processes=1"] or not (given or _is_cluster()):
        yield
        return
    if given and missing:
        raise cli.Refused(f"{' '.join(given)} without {missing}: give all three, or none.")
    count, process = _COUNT.value or 0, _PROCESS.value or 0
    if given and not 0 <= process < count:
        raise cli.Refused(
            f"--process_id={process} must be from 0 to {count - 1} with --num_processes={count}."
        )
    # Without this JAX would handle SIGTERM as preemption; the training loop handles it instead.
    jax.config.update("jax_enable_preemption_service", False)
    names = ("coordinator_address", "num_processes", "process_id")
    options: dict[str, Any] = dict(zip(names, values.values(), strict=True)) if given else {}
    if given:  # gRPC would use a web proxy even to reach this machine
        host = str(_COORDINATOR.value).rpartition(":")[0].strip("[]")
        os.environ["no_proxy"] = ",".join(filter(None, (os.environ.get("no_proxy"), host)))
    try:
        jax.distributed.initialize(**options, **_TIME_LIMITS)
    except (ValueError, RuntimeError) as error:
        raise cli.Failed(
            f"JAX could not start the processes: {cli.sentence(error)}; give --coordinator,"
            " --num_processes and --process_id, the same command in all."
        ) from error
    try:
        digest = zlib.crc32(json.dumps(same, sort_keys=True).encode())
        digests = multihost_utils.process_allgather(np.uint32(digest))
        if len({*digests.tolist()}) > 1:
            raise cli.Refused(
                "the processes have different configs or versions: start all with the same command."
            )
        yield
    except BaseException as error:
        # JAX's exit handler would wait for the other processes, so it must not run.
        code = cli.REFUSED if isinstance(error, cli.Refused) else cli.FAILED
        message = str(error) or type(error).__name__
        if re.search(r"Gloo|NCCL|coordination service", message):
            message = (
                f"another process has ended or cannot be reached ({cli.sentence(error)}): the same"
                " command in all processes goes on from the last checkpoint."
            )
        elif not isinstance(error, cli.Refused | cli.Failed | KeyboardInterrupt):
            raise
        print(f"error: {cli.printable(message)}", file=sys.stderr, flush=True)
        os._exit(128 + 2 if isinstance(error, KeyboardInterrupt) else code)
    jax.distributed.shutdown()


def _is_cluster() -> bool:
    """Check whether a launcher that JAX detects has started several processes."""
    environment = os.environ
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or "1"
    slurm = tasks != "1" and "SLURM_PROCID" in environment
    mpi = environment.get("OMPI_COMM_WORLD_SIZE", "1") != "1"
    return slurm or mpi or "," in environment.get("TPU_WORKER_HOSTNAMES", "")
