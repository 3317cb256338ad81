"""Runs in several processes: the flags, and the start and the end of `jax.distributed`.

JAX monitors the processes while they train. When one is killed or stops, JAX ends the others, by an
error from a collective or by the heartbeat, which aborts from C++. Errors that can be found earlier
are raised in one sentence, from the flags or when the processes connect (meeting.py).
"""

import atexit
import contextlib
import os
import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
from absl import flags

from experiments.running import cli, meeting

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
    # JAX detects a killed or stopped process within this time.
    "heartbeat_timeout_seconds": 40,
    # At the end all processes wait for process 0, which writes a report.
    "shutdown_timeout_seconds": 600,
}


@contextlib.contextmanager
def begin(facts: Mapping[str, str]) -> Iterator[None]:
    """Join a run if flags or a cluster request it, before JAX initialises the devices.

    At the end of the body the processes wait for one another. After an error this process ends
    without waiting, and JAX ends the others.

    Args:
      facts: values that must be equal in all processes, by name, such as versions and a digest of
        the config.
    """
    options = _options(facts)
    if options is None:
        yield
        return
    # Without this JAX would handle SIGTERM as preemption; the training loop handles it instead.
    jax.config.update("jax_enable_preemption_service", False)
    _initialize(options)
    try:
        yield
    except BaseException as error:
        code = cli.REFUSED if isinstance(error, cli.Refused) else cli.FAILED
        interrupted = isinstance(error, KeyboardInterrupt)
        atexit.register(_leave, 128 + signal.SIGINT if interrupted else code)
        if _is_lost_connection(error):
            raise cli.Failed(
                f"another process has ended or cannot be reached ({cli.sentence(error)}): the same"
                " command in all processes goes on from the last checkpoint."
            ) from error
        raise
    jax.distributed.shutdown()


def _options(facts: Mapping[str, str]) -> dict[str, Any] | None:
    """Check that all processes can start, and return the options of `jax.distributed`.

    Return None for a single process.
    """
    values = {flag.name: flag.value for flag in (_COORDINATOR, _COUNT, _PROCESS)}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    coordinator, count, process = _COORDINATOR.value, _COUNT.value, _PROCESS.value
    if not given:
        return {} if _cluster() else None
    if given == ["--num_processes=1"]:
        return None
    if coordinator is None or count is None or process is None:
        missing = " and ".join(f"--{name}" for name, value in values.items() if value is None)
        raise cli.Refused(f"{' '.join(given)} without {missing}: give all three, or none.")
    if not 0 <= process < count:
        raise cli.Refused(
            f"--process_id={process} must be from 0 to {count - 1} with --num_processes={count}."
        )
    meeting.host_and_port(coordinator)
    if count == 1:
        return None
    address = meeting.meet(coordinator, count, process, facts)
    # gRPC would use a web proxy even to reach this machine.
    without_proxy = os.environ.get("no_proxy"), meeting.host_and_port(address)[0]
    os.environ["no_proxy"] = ",".join(filter(None, without_proxy))
    return {
        "coordinator_address": address,
        "coordinator_bind_address": address,
        "num_processes": count,
        "process_id": process,
        "cluster_detection_method": "deactivate",
    }


def _initialize(options: Mapping[str, Any]) -> None:
    try:
        jax.distributed.initialize(**options, **_TIME_LIMITS)
    except (ValueError, RuntimeError) as error:
        where = "although all processes have connected" if options else f"on {_cluster()}"
        raise cli.Failed(
            f"JAX could not start {where}: {cli.sentence(error)}; give --coordinator,"
            " --num_processes and --process_id."
        ) from error


def _cluster() -> str | None:
    """Return the name of the launcher that started several processes, as JAX would detect it."""
    environment = os.environ
    slurm = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or "1"
    if tasks != "1" and all(name in environment for name in slurm):
        return "Slurm"
    if (size := environment.get("OMPI_COMM_WORLD_SIZE", "1")) != "1":
        if "OMPI_MCA_orte_hnp_uri" not in environment:  # Open MPI 5 no longer sets it
            raise cli.Refused(
                f"Open MPI started {size} processes without the address of process 0: give"
                f" --coordinator=HOST:PORT --num_processes={size}"
                " --process_id=$OMPI_COMM_WORLD_RANK, or --num_processes=1 for separate runs."
            )
        return "Open MPI"
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        return "a TPU pod"
    return None


def _is_lost_connection(error: BaseException) -> bool:
    """Check whether a collective raised an error because another process is gone."""
    cause = error.__cause__ if isinstance(error, cli.Failed) else error
    return isinstance(cause, ValueError | RuntimeError) and bool(
        re.search(r"Gloo|NCCL|coordination service", str(cause))
    )


def _leave(code: int) -> NoReturn:
    """End this process without JAX's exit handler, which would wait for the other processes."""
    with contextlib.suppress(OSError, ValueError):
        print(end="", flush=True)
    os._exit(code)
