"""Where the processes of one run meet before JAX starts, and how they hear of one another after.

JAX kills a process from C++ when another cannot be reached, and waits for long when one is gone.
So they meet first by plain sockets, where every mistake can be said in a sentence: process 0
listens at the coordinator's address, the others come there and say who they are. The connections
stay open, one from process 0 to each, and carry a line of JSON every few seconds: a process whose
line ends without a farewell is lost, and all others are told and end.
"""

import contextlib
import errno
import ipaddress
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self

from experiments import cli

MEETING_SECONDS = 45.0  # for all to come
BEAT_SECONDS = 5.0
SILENCE_SECONDS = 30.0  # after which a process is lost whose machine cannot say so
_PARTING_SECONDS = 3.0  # for the others to read what was said last
_HELLO_SECONDS = 5.0
_LONGEST_LINE = 65536
_KIND, _VERSION = "calib_jax meeting", 1  # by which a process is told from a port scanner


def address(coordinator: str) -> tuple[str, int]:
    """Take HOST:PORT apart; the host may be [an IPv6 address].

    >>> address("10.0.0.1:1234")
    ('10.0.0.1', 1234)
    >>> address("[::1]:1234")
    ('::1', 1234)
    """
    host, _, port = coordinator.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port:
        raise cli.Refused(f"--coordinator={coordinator} is not HOST:PORT, such as 10.0.0.1:1234.")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise cli.Refused(f"--coordinator={coordinator}: {port!r} is no port: 1 to 65535.")
    return host, int(port)


def end_here(sentence: str) -> NoReturn:
    """End this process at once, whatever its other threads wait for."""
    flush()
    with contextlib.suppress(OSError):
        os.write(2, f"error: {sentence}\n".encode())
    os._exit(cli.FAILED)


def flush() -> None:
    """Write out what was said, unless another thread holds the stream, stuck in a full pipe."""
    writing = threading.Thread(target=_flush, daemon=True)
    try:
        writing.start()
    except RuntimeError:  # none can start while the interpreter ends
        _flush()
    else:
        writing.join(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


class _Wire:
    """A connection to another process: a JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.process, self.host = -1, ""  # until it has said so
        self.opened = time.monotonic()
        self.quiet = 0.0
        self.unread: list[dict[str, Any]] = []  # what came together with what was waited for
        self._lock, self._rest = threading.Lock(), b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Mapping[str, Any], *, last: bool = False) -> None:
        """Send; that the other is gone is found where it is read."""
        with self._lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")
            if last:
                self.socket.shutdown(socket.SHUT_WR)

    def receive(self) -> list[dict[str, Any]]:
        """Return what has come: EOFError at the end, ValueError where it is not ours."""
        if self.unread:
            messages, self.unread = self.unread, []
            return messages
        try:
            data = self.socket.recv(_LONGEST_LINE)
        except TimeoutError:
            return []
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError("a line without an end")
        try:
            messages = [json.loads(line) for line in lines]
        except RecursionError as error:
            raise ValueError("a line too deep") from error
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a line that is no object")
        return messages

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


def _see_off(wires: Iterable[_Wire], seconds: float) -> None:
    """Close when the others have: before, what they have not read yet could be taken from them."""
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for wire in wires:
            selector.register(wire, selectors.EVENT_READ)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                try:
                    key.fileobj.receive()  # type: ignore[union-attr]
                except ValueError:
                    pass
                except EOFError:
                    selector.unregister(key.fileobj)
    for wire in wires:
        wire.close()


def meet(
    coordinator: str,
    count: int,
    process: int,
    what: Mapping[str, str],
    *,
    seconds: float = MEETING_SECONDS,
    beat: float = BEAT_SECONDS,
    silence: float = SILENCE_SECONDS,
    on_loss: Callable[[str], object] = end_here,
) -> "Meeting":
    """Wait until all processes of a run are there; a sentence says what keeps them apart.

    Args:
      coordinator: HOST:PORT, where process 0 listens and the others come.
      count: how many they are.
      process: which of them this one is, from 0.
      what: what has to be the same in all, by name.
      seconds: how long to wait.
      beat: seconds between two signs of life.
      silence: seconds without one, after which a process is lost.
      on_loss: called with a sentence, in another thread, when a process is lost or has failed.
    """
    place = address(coordinator)
    hello = {
        _KIND: _VERSION,
        "process": process,
        "count": count,
        "host": socket.gethostname(),
        "what": dict(what),
    }
    if process == 0:
        wires, hosts = _Host(place, hello, seconds).gather()
    else:
        wires, hosts = _Guest(place, hello, seconds).join()
    return Meeting(process, hosts, wires, beat=beat, silence=silence, on_loss=on_loss)


def connect(place: tuple[str, int], seconds: float) -> socket.socket:
    """Connect to a place where somebody listens, or raise OSError."""
    connection = socket.create_connection(place, timeout=seconds)
    # Where nobody does, a connection to a port of one's own machine can meet itself.
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return connection


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine for whoever says it."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(one[4][0]).split("%")[0]).is_loopback for one in found)


def _listen(host: str, port: int) -> socket.socket:
    """Listen where only this machine comes if that is what was asked for; else everywhere."""
    try:
        if is_loopback(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family)
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except (OSError, ValueError) as error:  # a machine without IPv6, or without an address
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise
            return socket.create_server(("", port))
    except OSError as error:
        if isinstance(error, socket.gaierror):
            why = _no_address(host)
        elif error.errno == errno.EADDRINUSE:
            why = f"port {port} is in use: choose another port, or stop the other process 0."
        else:
            why = f"process 0 cannot listen on port {port} ({error.strerror}): choose another."
        raise cli.Refused(f"--coordinator={_said(host, port)}: {why}") from error


def _said(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _no_address(host: str) -> str:
    return f"no machine has the name {host}: give one that all machines know, or an address."


def _missing(missing: list[int], count: int, where: str, seconds: float) -> str:
    ids = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
    which = f"process {ids}" if len(missing) == 1 else f"processes {ids}"
    return (
        f"{which} of {count} did not come to {where} within {seconds:g} s: start the same command"
        f" with each --process_id from 0 to {count - 1}, and see that the machines reach {where}"
    )


class _Host:
    """Process 0 while it waits for the others."""

    def __init__(self, place: tuple[str, int], hello: dict[str, Any], seconds: float) -> None:
        self.place, self.hello, self.seconds = place, hello, seconds
        self.count: int = hello["count"]
        self.present: dict[int, _Wire] = {}
        self.strangers: list[_Wire] = []
        self.selector = selectors.DefaultSelector()

    def gather(self) -> tuple[list[_Wire], list[str]]:
        end = time.monotonic() + self.seconds
        with self.selector, _listen(*self.place) as listener:
            listener.settimeout(1)  # who has knocked may have gone
            self.selector.register(listener, selectors.EVENT_READ)
            try:
                while len(self.present) < self.count - 1:
                    if time.monotonic() > end:
                        raise cli.Failed(self._missing())
                    self._hear(listener)
            except (cli.Refused, cli.Failed) as error:
                self._refuse(listener, str(error), isinstance(error, cli.Refused))
                raise
            except BaseException:
                name = f"process 0 ({self.hello['host']})"
                self._refuse(listener, f"{name} was stopped before all had come.", False)
                raise
            for stranger in self.strangers:
                stranger.close()
        wires = [self.present[process] for process in range(1, self.count)]
        hosts = [self.hello["host"], *(wire.host for wire in wires)]
        for wire in wires:
            wire.send({"hosts": hosts})
        return wires, hosts

    def _hear(self, listener: socket.socket) -> None:
        for key, _ in self.selector.select(0.1):
            if key.fileobj is listener:
                with contextlib.suppress(OSError):
                    self._let_in(listener)
            else:
                self._read(key.fileobj)  # type: ignore[arg-type]
        for wire in list(self.strangers):
            if time.monotonic() - wire.opened > _HELLO_SECONDS:
                self._drop(wire)

    def _let_in(self, listener: socket.socket) -> _Wire:
        wire = _Wire(listener.accept()[0])
        self.strangers.append(wire)
        self.selector.register(wire, selectors.EVENT_READ)
        return wire

    def _read(self, wire: _Wire) -> None:
        try:
            for said in wire.receive():
                if wire in self.strangers:
                    self._welcome(wire, said)
        except (EOFError, ValueError):  # it went, or it is none of ours
            self._drop(wire)

    def _drop(self, wire: _Wire) -> None:
        self.selector.unregister(wire)
        wire.close()
        if wire in self.strangers:
            self.strangers.remove(wire)
        elif self.present.get(wire.process) is wire:
            del self.present[wire.process]
            self._announce()

    def _welcome(self, wire: _Wire, said: dict[str, Any]) -> None:
        kinds = {"process": int, "count": int, "host": str, "what": dict}
        if said.get(_KIND) != _VERSION or any(
            not isinstance(said.get(name), kind) for name, kind in kinds.items()
        ):
            raise ValueError("not a process of ours")
        if problem := self._problem(said):
            raise cli.Refused(problem)
        wire.process, wire.host = said["process"], said["host"]
        self.strangers.remove(wire)
        self.present[wire.process] = wire
        self._announce()

    def _problem(self, said: dict[str, Any]) -> str | None:
        process, host, mine = said["process"], said["host"], self.hello["host"]
        if said["count"] != self.count:
            return (
                f"process {process} ({host}) was told --num_processes={said['count']}, and"
                f" process 0 ({mine}) --num_processes={self.count}: give all the same."
            )
        if not 0 < process < self.count:
            return (
                f"--process_id={process} on {host} is not one of 1 to {self.count - 1}, which"
                f" process 0 ({mine}) waits for."
            )
        if process in self.present:
            return (
                f"--process_id={process} was given twice, on {self.present[process].host} and on"
                f" {host}: give every process its own, from 0 to {self.count - 1}."
            )
        for name in sorted({*said["what"], *self.hello["what"]}):
            theirs, ours = (one.get(name, "none") for one in (said["what"], self.hello["what"]))
            if theirs != ours:
                return (
                    f"{name} is {theirs} in process {process} ({host}) and {ours} in process 0"
                    f" ({mine}): it has to be the same in all."
                )
        return None

    def _absent(self) -> list[int]:
        return [one for one in range(1, self.count) if one not in self.present]

    def _announce(self) -> None:
        for wire in self.present.values():
            wire.send({"missing": self._absent()})

    def _missing(self) -> str:
        where = _said(*self.place)
        text = _missing(self._absent(), self.count, where, self.seconds)
        try:
            host = self.place[0]
            socket.create_server((host, 0), family=socket.getaddrinfo(host, None)[0][0]).close()
        except OSError:
            text += f"; {self.place[0]} is no address of this machine, where process 0 runs"
        return f"{text}."

    def _refuse(self, listener: socket.socket, sentence: str, refused: bool) -> None:
        """Tell those who are there, and after a mistake also those who come a little later."""
        end = time.monotonic() + (_PARTING_SECONDS if refused else 0)
        told: list[_Wire] = []
        news = {"refused": sentence, "code": cli.REFUSED if refused else cli.FAILED}
        while True:
            for wire in [*self.present.values(), *self.strangers]:
                if wire not in told:
                    wire.send(news, last=True)
                    told.append(wire)
            if len(told) >= self.count - 1 or (left := end - time.monotonic()) <= 0:
                break
            listener.settimeout(left)
            with contextlib.suppress(OSError):
                self._let_in(listener)
        _see_off(told, 1)


class _Guest:
    """Any other process on its way to process 0."""

    def __init__(self, place: tuple[str, int], hello: dict[str, Any], seconds: float) -> None:
        self.place, self.hello, self.seconds = place, hello, seconds
        self.end = time.monotonic() + seconds
        self.why = "nothing answers there"

    def join(self) -> tuple[list[_Wire], list[str]]:
        while (left := self.end - time.monotonic()) > 0:
            try:
                connection = connect(self.place, min(left, 5))
            except socket.gaierror:
                self.why = _no_address(self.place[0]).removesuffix(".")
            except OSError as error:
                self.why = (error.strerror or str(error) or "nothing answers there").lower()
            else:
                wire = _Wire(connection)
                try:
                    return [wire], self._wait(wire)
                except EOFError:
                    self.why = "process 0 was there and went"
                except ValueError:
                    self.why = "what answers there is no process 0 of such a run"
                except BaseException:
                    wire.close()
                    raise
                wire.close()
            time.sleep(max(0.0, min(0.1, self.end - time.monotonic())))
        where = _said(*self.place)
        raise cli.Failed(
            f"process 0 cannot be reached at --coordinator={where}, tried for {self.seconds:g} s"
            f" ({self.why}): start process 0 there, and see that this machine reaches {where}."
        )

    def _wait(self, wire: _Wire) -> list[str]:
        wire.send(self.hello)
        missing: list[int] | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(wire, selectors.EVENT_READ)
            # What process 0 says at the same moment is the better word.
            while (left := self.end + 2 - time.monotonic()) > 0:
                messages = wire.receive() if selector.select(left) else []
                for read, said in enumerate(messages, start=1):
                    if "refused" in said:
                        refused = said.get("code") == cli.REFUSED
                        raise (cli.Refused if refused else cli.Failed)(str(said["refused"]))
                    if "hosts" in said:
                        wire.process, wire.host = 0, said["hosts"][0]
                        wire.unread = messages[read:]
                        return [str(host) for host in said["hosts"]]
                    missing = said.get("missing", missing)
        if missing is None:
            raise ValueError("it says nothing")
        where, count = _said(*self.place), self.hello["count"]
        raise cli.Failed(f"{_missing(missing, count, where, self.seconds)}.")


class Meeting:
    """All processes of a run, who hear of one another until each has left.

    As a context it is left at its end, and an error that ends it is told to the others.
    """

    def __init__(
        self,
        process: int,
        hosts: list[str],
        wires: list[_Wire],
        *,
        beat: float,
        silence: float,
        on_loss: Callable[[str], object],
    ) -> None:
        self.process, self.hosts, self.count = process, hosts, len(hosts)
        self._beat, self._silence, self._on_loss = beat, silence, on_loss
        self._wires, self._selector = set(wires), selectors.DefaultSelector()
        for wire in wires:
            self._selector.register(wire, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._done: set[int] = set()
        self._all_done, self._bad = threading.Event(), threading.Event()
        self._ending = False  # of its own accord: what the others do no longer matters
        line = wires[0].socket
        name = line.getsockname() if process == 0 else line.getpeername()
        self.hub = str(name[0]).removeprefix("::ffff:")  # where process 0 is, seen from here
        self._thread = threading.Thread(target=self._attend, name="lifeline", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.leave()
        else:
            self.failed(cli.sentence(error))

    def finish(self) -> bool:
        """Say that the work is done here, and wait until it is everywhere.

        Whoever is lost meanwhile is still lost. False if that has happened.
        """
        if self.process == 0:
            self._note_done(0)
        else:
            self._send({"done": True})
        self._all_done.wait()
        return not self._bad.is_set()

    def leave(self) -> None:
        """Say farewell: the others may go on without this process."""
        self._end({"farewell": True})

    def failed(self, sentence: str) -> None:
        """Tell the others that this process ends with an error, and what it is."""
        sentence = sentence[:2000]
        said = self._failed_sentence(self.process, sentence)
        self._end({"end": said} if self.process == 0 else {"failed": sentence})

    def wait_for_bad_news(self, seconds: float) -> bool:
        """Give the news time to come that another process is gone; tell whether it has.

        An error here is often no more than what follows from that. `on_loss` has then been
        called, so that in its default this never returns.
        """
        if not self._bad.wait(seconds):
            return False
        self._thread.join()
        return True

    def _end(self, message: dict[str, Any]) -> None:
        with self._lock:
            already = self._bad.is_set()
            self._ending = self._ending or not already
        if already:
            self._thread.join()  # on_loss is speaking
        self._send(message, last=True)
        self._thread.join(_PARTING_SECONDS)

    def _send(self, message: dict[str, Any], *, last: bool = False) -> None:
        for wire in list(self._wires):
            wire.send(message, last=last)

    def _name(self, process: int) -> str:
        return f"process {process} ({self.hosts[process]})"

    def _failed_sentence(self, process: int, sentence: str) -> str:
        return f"{self._name(process)} failed: {sentence}"

    def _lost_sentence(self, process: int, how: str) -> str:
        return (
            f"{self._name(process)} was lost ({how}): nothing that was saved is lost, and the same"
            f" command in all {self.count} processes goes on."
        )

    def _attend(self) -> None:
        """Live in a thread of its own: read, beat, and count how long nothing was heard."""
        before, due = time.monotonic(), 0.0
        while self._wires:
            if time.monotonic() >= due:
                self._send({"beat": True})
                due = time.monotonic() + self._beat
            ready = [key.fileobj for key, _ in self._selector.select(self._beat)]
            # A process that was halted itself has no reason to think that the others were.
            now = time.monotonic()
            passed, before = min(now - before, self._beat), now
            for wire in list(self._wires):
                wire.quiet = 0.0 if wire in ready else wire.quiet + passed
                if wire in ready:
                    self._read(wire)
                elif wire.quiet > self._silence:
                    self._drop(wire)
                    how = f"nothing was heard of it for {self._silence:g} s"
                    self._bad_news(self._lost_sentence(wire.process, how))
        self._selector.close()
        self._all_done.set()

    def _read(self, wire: _Wire) -> None:
        try:
            messages = wire.receive()
        except (EOFError, ValueError):
            self._drop(wire)
            self._bad_news(self._lost_sentence(wire.process, "it ended without a word"))
            return
        for said in messages:
            if "farewell" in said:
                self._drop(wire)
                self._note_done(wire.process)
            elif "failed" in said:
                self._drop(wire)
                self._bad_news(self._failed_sentence(wire.process, str(said["failed"])))
            elif "end" in said:
                self._bad_news(str(said["end"]))
                self._drop(wire)
            elif "done" in said:
                self._note_done(wire.process)
            elif "all done" in said:
                self._all_done.set()

    def _drop(self, wire: _Wire) -> None:
        if wire in self._wires:
            self._wires.remove(wire)
            self._selector.unregister(wire)
            wire.close()

    def _note_done(self, process: int) -> None:
        with self._lock:
            self._done.add(process)
            complete = self.process == 0 and len(self._done) == self.count
        if complete:
            self._send({"all done": True})
            self._all_done.set()

    def _bad_news(self, sentence: str) -> None:
        """End this process; as process 0 all others before it, since JAX's service is here."""
        with self._lock:
            if self._ending or self._bad.is_set():
                return
            self._bad.set()
        if self.process == 0:
            self._send({"end": sentence})
            for wire in self._wires:
                self._selector.unregister(wire)
            _see_off(self._wires, _PARTING_SECONDS)
            self._wires.clear()
        self._on_loss(sentence)
