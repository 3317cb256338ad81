"""A run in several processes: the flags, and JAX's own start and end in bounds.

JAX kills a process from C++, with a page of trace, when another is missing or gone. So whatever it
would find comes to light before it does: at the meeting, or on the lifeline that the meeting leaves
open (meeting.py).
"""

import atexit
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import jax
from absl import flags

from experiments import cli, meeting

_COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "HOST:PORT of process 0 of a run in several processes, the same in all: its machine as the"
    " others know it, and any free port there. Several on one machine with GPUs: give each its own"
    " by CUDA_VISIBLE_DEVICES.",
)
_COUNT = flags.DEFINE_integer(
    "num_processes", None, "How many processes the run has, the same in all; 1 is no such run."
)
_PROCESS = flags.DEFINE_integer(
    "process_id", None, "Which of them this one is: 0, 1, ... below --num_processes."
)

# The lifeline speaks after meeting.SILENCE_SECONDS at the latest: always before JAX does.
_HEARTBEAT_SECONDS = 100
_START_SECONDS, _JAX_START_SECONDS = 40, 60
_STOP_SECONDS, _JAX_STOP_SECONDS = 10, 30
# Without a lifeline all wait in JAX for process 0, which has a report to write.
_CLUSTER_STOP_SECONDS = 600
_NEWS_SECONDS = 5.0
_DIRECT = "no_grpc_proxy"  # the variable that gRPC reads, in small letters
_EXIT_SECONDS = 20.0


@contextlib.contextmanager
def begin(what: Mapping[str, str]) -> Iterator[None]:
    """Make this process one of a run if flags or a cluster say so, before JAX has a device.

    An error in the body ends the others, too, each with a sentence that quotes it. At the end all
    wait for one another.

    Args:
      what: what has to be the same in all, by name, such as versions and a digest of the config.
    """
    told = _told()
    if told is not None:
        coordinator, count, process = told
        if count == 1:
            yield
            return
        with _met(meeting.meet(coordinator, count, process, what), coordinator):
            yield
    elif (cluster := _cluster()) is not None:
        with _on(cluster):
            yield
    else:
        yield


def _told() -> tuple[str, int, int] | None:
    """Return the flags, looked at; None where there are none."""
    values = {one.name: one.value for one in (_COORDINATOR, _COUNT, _PROCESS)}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    coordinator, count, process = _COORDINATOR.value, _COUNT.value, _PROCESS.value
    if not given:
        return None
    if count is not None and count < 1:
        raise cli.Refused(f"--num_processes={count}: a run has 1 process at least.")
    if count == 1 and len(given) == 1:
        return "", 1, 0
    if coordinator is None or count is None or process is None:
        missing = " and ".join(f"--{name}" for name, value in values.items() if value is None)
        needs = "needs" if len(given) == 1 else "need"
        raise cli.Refused(f"give {missing}, too, which {' and '.join(given)} {needs}.")
    if not 0 <= process < count:
        ids = f"0 to {count - 1}" if count > 1 else "0"
        raise cli.Refused(f"--process_id={process}: --num_processes={count} has {ids}.")
    meeting.address(coordinator)
    return coordinator, count, process


def _cluster() -> str | None:
    """Return what started this process beside others, as JAX would find out, too."""
    environment = os.environ
    slurm = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
    if _number(tasks) > 1 and all(name in environment for name in slurm):
        return "Slurm"
    if (size := _number(environment.get("OMPI_COMM_WORLD_SIZE"))) > 1:
        if "OMPI_MCA_orte_hnp_uri" not in environment:  # Open MPI 5 no longer says it
            raise cli.Refused(
                f"Open MPI started {size} processes, but does not tell JAX where the first is: give"
                f" --coordinator=HOST:PORT --num_processes={size}"
                " --process_id=$OMPI_COMM_WORLD_RANK, or --num_processes=1 for separate runs."
            )
        return "Open MPI"
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        return "a TPU pod"
    return None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


@contextlib.contextmanager
def _on(cluster: str) -> Iterator[None]:
    """Be one process of a cluster that JAX knows, which also ends the others of a broken run."""
    try:
        with _same_signals():
            jax.distributed.initialize(
                initialization_timeout=_JAX_START_SECONDS,
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=_CLUSTER_STOP_SECONDS,
            )
    except (ValueError, RuntimeError) as error:
        raise cli.Failed(
            f"JAX could not start on {cluster}: {cli.sentence(error)}; --coordinator,"
            " --num_processes and --process_id say what it could not find out."
        ) from error
    try:
        yield
    except BaseException as error:
        if _is_failure(error):
            _leave_at_exit(_code(error))
        raise
    jax.distributed.shutdown()


@contextlib.contextmanager
def _met(met: meeting.Meeting, coordinator: str) -> Iterator[None]:
    """Be one process of those that have met."""
    ended: SystemExit | None = None
    try:
        _start(met, coordinator)
        try:
            yield
        except SystemExit as error:
            if _is_failure(error):
                raise
            ended = error
        met.finish()
        _stop(met)
    except BaseException as error:
        if _may_follow_from_a_loss(error):
            met.wait_for_bad_news(_NEWS_SECONDS)
        met.failed("interrupted." if isinstance(error, KeyboardInterrupt) else cli.sentence(error))
        _leave_at_exit(_code(error))
        raise
    met.leave()
    if ended is not None:
        raise ended


def _start(met: meeting.Meeting, coordinator: str) -> None:
    host, port = meeting.address(coordinator)
    inside, bind = f"127.0.0.1:{port}", None
    if met.process == 0:
        inside = f"[{met.hub}]:{port}" if ":" in met.hub else f"{met.hub}:{port}"
        bind = inside if meeting.is_loopback(host) else f"[::]:{port}"
    else:
        inside = f"127.0.0.1:{_relay((met.hub, port))}"
    # gRPC would reach even this machine by way of a proxy of the web.
    direct = (os.environ.get(_DIRECT) or os.environ.get("no_proxy"), "127.0.0.1", met.hub)
    os.environ[_DIRECT] = ",".join(filter(None, direct))
    sentence = f"JAX did not start within {_START_SECONDS} s, though all processes had met."
    with _limit(_START_SECONDS, lambda: _give_up(met, sentence)), _same_signals():
        try:
            jax.distributed.initialize(
                inside,
                met.count,
                met.process,
                cluster_detection_method="deactivate",
                initialization_timeout=_JAX_START_SECONDS,
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=_JAX_STOP_SECONDS,
                coordinator_bind_address=bind,
            )
        except jax.errors.JaxRuntimeError as error:
            raise cli.Failed(f"JAX could not start: {cli.sentence(error)}") from error


@contextlib.contextmanager
def _same_signals() -> Iterator[None]:
    """Leave SIGTERM as it is: JAX takes it for a notice that somebody may ask for, and goes on."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _stop(met: meeting.Meeting) -> None:
    """End JAX, which waits for all: they have just said that they are through."""
    sentence = f"the work is done, but JAX did not end within {_STOP_SECONDS} s."
    with _limit(_STOP_SECONDS, lambda: _give_up(met, sentence)):
        jax.distributed.shutdown()


def _give_up(met: meeting.Meeting, sentence: str) -> NoReturn:
    met.failed(sentence)
    meeting.end_here(sentence)


@contextlib.contextmanager
def _limit(seconds: float, then: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, then)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _relay(place: tuple[str, int]) -> int:
    """Open a port of this machine that leads to process 0 and stays open when that is gone.

    JAX kills this process within milliseconds when its own connection there ends: before the
    lifeline could say why.
    """
    door = socket.create_server(("127.0.0.1", 0))

    def attend() -> None:
        while True:
            inner, _ = door.accept()
            threading.Thread(target=_carry, args=(inner, place), daemon=True).start()

    threading.Thread(target=attend, name="relay", daemon=True).start()
    port: int = door.getsockname()[1]
    return port


def _carry(inner: socket.socket, place: tuple[str, int]) -> None:
    """Carry bytes both ways until JAX ends the connection; what process 0 does never ends it."""
    outer = None
    while outer is None:
        try:
            outer = meeting.connect(place, 5)
        except OSError:  # JAX's service may not be there yet
            time.sleep(0.02)
    for one in (inner, outer):
        one.settimeout(None)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_pump, args=(outer, inner), daemon=True).start()
    _pump(inner, outer)
    with contextlib.suppress(OSError):
        outer.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            with contextlib.suppress(OSError):  # the reader is gone: read on, as it did
                target.sendall(data)


def _is_failure(error: BaseException) -> bool:
    return not (isinstance(error, SystemExit) and error.code in (None, 0))


def _may_follow_from_a_loss(error: BaseException) -> bool:
    """Tell whether an error may be what a collective says when another process is gone."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return False
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    if any(isinstance(one, jax.errors.JaxRuntimeError) or "Gloo" in str(one) for one in chain):
        return True
    return not isinstance(error, cli.Failed | cli.Refused)


def _code(error: BaseException) -> int:
    """Return the exit code that cli.py will give to an error."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else cli.FAILED
    codes = {
        cli.Refused: cli.REFUSED,
        KeyboardInterrupt: 128 + signal.SIGINT,
        BrokenPipeError: 128 + signal.SIGPIPE,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), cli.FAILED)


def _leave_at_exit(code: int) -> None:
    """End before JAX does at exit: it would wait for the others, who are gone, and be killed."""

    def leave() -> NoReturn:
        logging.shutdown()
        meeting.flush()
        os._exit(code)

    atexit.register(leave)
    # What is between here and there may wait, too.
    timer = threading.Timer(_EXIT_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()
