"""Check the processes of one run by one TCP exchange before JAX starts.

JAX aborts from C++ when a process is missing, and does not compare configs. So the processes first
exchange messages: process 0 listens at the coordinator's address, every other process sends one
line of JSON, and process 0 answers all processes once it has decided whether the run can start.
Then process 0 closes the port.
"""

import contextlib
import json
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

from experiments.running import cli

MEETING_SECONDS = 40.0  # time limit until all processes have connected
_READ_SECONDS = 2.0  # time limit for the line of a connected process
_LONGEST_LINE = 4096


def host_and_port(coordinator: str) -> tuple[str, int]:
    """Split HOST:PORT; the host may be [an IPv6 address].

    >>> host_and_port("10.0.0.1:1234"), host_and_port("[::1]:1234")
    (('10.0.0.1', 1234), ('::1', 1234))
    """
    host, _, port = coordinator.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise cli.Refused(
            f"--coordinator={coordinator} is not HOST:PORT, such as 10.0.0.1:1234, with a port"
            " from 1 to 65535."
        )
    return host, int(port)


def meet(
    coordinator: str,
    count: int,
    process: int,
    facts: Mapping[str, str],
    *,
    seconds: float = MEETING_SECONDS,
) -> str:
    """Wait until all processes of a run have connected, and return the address of process 0.

    Args:
      coordinator: HOST:PORT, where process 0 listens.
      count: the number of processes.
      process: the index of this process.
      facts: values that must be equal in all processes, by name.
      seconds: the time limit.

    Returns:
      IP:PORT: the address at which process 0 listened, or at which this process reached it.
    """
    facts = {"--num_processes": str(count), **facts}
    hello = {"process": process, "host": socket.gethostname(), "facts": facts}
    end = time.monotonic() + seconds
    if process:
        return _join(coordinator, hello, end)
    return _gather(coordinator, hello, count, end)


def _gather(coordinator: str, hello: dict[str, Any], count: int, end: float) -> str:
    """Wait for the other processes as process 0, and send them the decision or the error."""
    guests: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(coordinator))
        address = _joined(listener.getsockname())
        while missing := [number for number in range(1, count) if number not in guests]:
            problem = ""
            readable = select.select([listener, *guests.values()], [], [], 0.2)[0]
            # A waiting process sends nothing, so a readable connection was closed by its process.
            guests = {number: guest for number, guest in guests.items() if guest not in readable}
            if time.monotonic() > end:
                problem = (
                    f"--process_id={', '.join(map(str, missing[:10]))} of {count} did not connect"
                    f" to {address} in time: start the same command with every id from 0 to"
                    f" {count - 1}, and check that the machines can reach process 0."
                )
            elif listener in readable:
                guest = stack.enter_context(listener.accept()[0])
                greeting = _read(guest, time.monotonic() + _READ_SECONDS)
                if _types(greeting) != _types(hello):
                    guest.close()  # not a process of this run
                    continue
                problem = _difference(greeting, hello, greeting["process"] in guests)
                guests[-1 if problem else greeting["process"]] = guest
            if problem:
                # The message may quote text from an unknown sender.
                problem = cli.printable(" ".join(problem.split()))
                for guest in guests.values():
                    _send(guest, {"error": problem})
                raise cli.Refused(problem)
        for guest in guests.values():
            _send(guest, {"start": True})
        return address


def _listen(coordinator: str) -> socket.socket:
    """Listen at the address of the coordinator only."""
    try:
        family, *_, place = socket.getaddrinfo(
            *host_and_port(coordinator), type=socket.SOCK_STREAM
        )[0]
        return socket.create_server(place, family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # drops the repeated address
        raise cli.Refused(
            f"process 0 cannot listen at --coordinator={coordinator} ({why}): give a free port at"
            " an address of the machine where process 0 runs."
        ) from error


def _types(message: Mapping[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in message.items()}


def _difference(greeting: Mapping[str, Any], hello: Mapping[str, Any], twice: bool) -> str:
    """Describe why the process that sent `greeting` cannot join the run; empty if it can."""
    number, host = greeting["process"], greeting["host"]
    for name in sorted({*greeting["facts"], *hello["facts"]}):
        theirs, ours = (one["facts"].get(name, "none") for one in (greeting, hello))
        if theirs != ours:
            return (
                f"{name} is {theirs} in process {number} ({host}) and {ours} in process 0"
                f" ({hello['host']}): give all processes the same value."
            )
    return f"--process_id={number} was given twice: give each process its own." if twice else ""


def _join(coordinator: str, hello: dict[str, Any], end: float) -> str:
    """Connect to process 0, and wait for its answer."""
    why = "no answer"
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection(host_and_port(coordinator), min(left, 5)) as connection:
                _send(connection, hello)
                # Process 0 may reach its time limit at the same moment; its message is better.
                answer = _read(connection, end + 2)
                if "start" in answer:
                    return _joined(connection.getpeername())
            if "error" in answer:
                raise cli.Refused(cli.printable(" ".join(str(answer["error"]).split())))
            why = "the program that answers there is not process 0 of this run, or has ended"
        except OSError as error:
            why = error.strerror or str(error)
        time.sleep(max(0.0, min(0.2, end - time.monotonic())))
    raise cli.Refused(
        f"process 0 at --coordinator={coordinator} did not start the run in time ({why}):"
        " start the same command with every --process_id, and check that this machine can reach it."
    )


def _joined(place: tuple[Any, ...]) -> str:
    return f"[{place[0]}]:{place[1]}" if ":" in place[0] else f"{place[0]}:{place[1]}"


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the reader has closed the connection
        connection.sendall(json.dumps(message).encode() + b"\n")


def _read(connection: socket.socket, end: float) -> dict[str, Any]:
    """Read a line of JSON of bounded time and size; return {} for anything else."""
    data = b""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        while not data.endswith(b"\n") and len(data) < _LONGEST_LINE:
            connection.settimeout(max(end - time.monotonic(), 0.001))
            if not (more := connection.recv(_LONGEST_LINE - len(data))):
                break
            data += more
        message = json.loads(data) if data.endswith(b"\n") else {}
        return message if isinstance(message, dict) else {}
    return {}
