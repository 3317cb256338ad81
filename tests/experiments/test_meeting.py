"""Processes meet, or each says why not; the line between them says who is lost."""

import concurrent.futures
import contextlib
import json
import queue
import socket
import threading
import time

import pytest

from experiments import cli, meeting

LINE = {"calib_jax meeting": 1, "process": 1, "count": 2, "host": "far", "what": {"jax": "1"}}
WHAT = {"jax": "1"}


@pytest.fixture
def place():
    """A free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Process:
    """A process in a thread: whom it met, or what it said, and the news that it heard."""

    def __init__(self, place, count, process, what=WHAT, **options):
        self.news = queue.Queue()
        options = {"seconds": 5, "beat": 0.05, "silence": 5, **options}
        pool = concurrent.futures.ThreadPoolExecutor(1)
        self.future = pool.submit(
            meeting.meet, place, count, process, what, on_loss=self.news.put, **options
        )
        pool.shutdown(wait=False)

    @property
    def met(self):
        return self.future.result(10)

    @property
    def error(self):
        return self.future.exception(10)


def all_of(place, count, **options):
    processes = [Process(place, count, process, **options) for process in range(count)]
    for one in processes:
        assert one.met.count == count
    return processes


def cut(process):
    """End a process's lines as the system does when it is killed."""
    met = process.met
    met._ending = True
    for wire in list(met._wires):
        wire.socket.shutdown(socket.SHUT_RDWR)


def in_turn(*acts):
    """Do what waits for one another at once."""
    with concurrent.futures.ThreadPoolExecutor(len(acts)) as pool:
        return [future.result(10) for future in [pool.submit(act) for act in acts]]


def host_and_port(place):
    host, port = place.split(":")
    return host, int(port)


def test_all_come_and_the_port_is_free_again_for_jax(place):
    processes = all_of(place, 3)
    assert [one.met.process for one in processes] == [0, 1, 2]
    assert all(one.met.hosts == [socket.gethostname()] * 3 for one in processes)
    assert all(one.met.hub == "127.0.0.1" for one in processes)
    with socket.create_server(host_and_port(place)):  # while the lines are open
        pass
    in_turn(*(one.met.leave for one in processes))
    again = all_of(place, 2)  # and while the system still holds the old lines
    in_turn(*(one.met.leave for one in again))
    assert all(one.news.empty() for one in processes + again)


def test_others_may_come_first(place):
    guest = Process(place, 2, 1)
    time.sleep(0.3)
    host = Process(place, 2, 0)
    assert guest.met.count == host.met.count == 2
    in_turn(host.met.leave, guest.met.leave)


def test_who_is_missing_is_named_to_all(place):
    processes = [Process(place, 4, process, seconds=0.5) for process in (0, 2)]
    said = {str(one.error) for one in processes}
    assert said == {
        f"processes 1, 3 of 4 did not come to {place} within 0.5 s: start the same command with"
        f" each --process_id from 0 to 3, and see that the machines reach {place}."
    }
    assert {type(one.error) for one in processes} == {cli.Failed}


def test_a_host_that_is_not_this_machine_is_a_hint(place):
    port = place.split(":")[1]
    error = Process(f"192.0.2.1:{port}", 2, 0, seconds=0.2).error  # an address of nobody
    assert str(error).endswith("; 192.0.2.1 is no address of this machine, where process 0 runs.")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([{"process": 1}, {"process": 1}], "--process_id=1 was given twice"),
        ([{"process": 1, "count": 4}], r"told --num_processes=4, and .* --num_processes=3"),
        ([{"process": 3}], "--process_id=3 on .* is not one of 1 to 2"),
        ([{"process": 1, "what": {"jax": "2"}}], r"jax is 2 in process 1 .* and 1 in process 0"),
        ([{"process": 1, "what": {}}], r"jax is none in process 1 .* and 1 in process 0"),
        ([{"process": 1, "what": {**WHAT, "b": "2"}}], r"b is 2 in process 1 .* and none in"),
    ],
)
def test_a_mistake_is_the_same_sentence_to_all(place, monkeypatch, others, words):
    monkeypatch.setattr(meeting, "_PARTING_SECONDS", 0.2)
    host = Process(place, 3, 0)
    processes = [host, *(Process(place, **{"count": 3, **one}) for one in others)]
    for one in processes:
        with pytest.raises(cli.Refused, match=words):
            raise one.error
    assert len({str(one.error) for one in processes}) == 1
    assert Process(place, 3, 0, seconds=0.1).error  # the port is free again


def test_who_comes_a_little_after_a_mistake_is_told(place):
    host, wrong = Process(place, 3, 0), Process(place, 3, 5)
    assert wrong.error
    late = Process(place, 3, 2)
    assert str(late.error) == str(wrong.error) == str(host.error)


def test_port_in_use(place):
    with socket.create_server(host_and_port(place)):
        error = Process(place, 2, 0).error
    assert isinstance(error, cli.Refused)
    port = place.split(":")[1]
    assert f"port {port} is in use: choose another port, or stop the other process 0." in str(error)


@pytest.mark.parametrize(
    ("answer", "why"), [(None, "connection refused"), (b"HTTP/1.1 400\r\n", "is no process 0")]
)
def test_process_0_cannot_be_reached(place, answer, why):
    with contextlib.ExitStack() as stack:
        if answer:
            server = stack.enter_context(socket.create_server(host_and_port(place)))
            threading.Thread(target=answer_all, args=(server, answer), daemon=True).start()
        start = time.monotonic()
        error = Process(place, 2, 1, seconds=0.4).error
        assert time.monotonic() - start < 2
    assert isinstance(error, cli.Failed)
    assert f"cannot be reached at --coordinator={place}, tried for 0.4 s" in str(error)
    assert why in str(error)


def answer_all(server, answer):
    with contextlib.suppress(OSError):
        while True:
            with server.accept()[0] as connection:
                connection.sendall(answer)


@pytest.mark.parametrize(
    "coordinator",
    ["here", ":1", "here:", "here:port", "here:0", "here:70000", "here:-1", "here:²"],
)
def test_no_address(coordinator):
    with pytest.raises(cli.Refused, match=f"^--coordinator={coordinator}"):
        meeting.address(coordinator)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\xff\xfe\n",
        b"[" * 60000 + b"\n",
        b"7\n",
        b'{"process": 1}\n',
        json.dumps({**LINE, "process": "1"}).encode() + b"\n",
        b"",
    ],
)
def test_garbage_is_no_process(place, said):
    host = Process(place, 2, 0)
    with connected(place) as stranger:
        stranger.sendall(said)
        guest = Process(place, 2, 1)
        assert host.met.count == guest.met.count == 2
    in_turn(host.met.leave, guest.met.leave)


def test_a_process_that_went_may_come_again(place):
    host = Process(place, 3, 0)
    with connected(place) as first:
        first.sendall(json.dumps({**LINE, "count": 3}).encode() + b"\n")
        assert b"missing" in first.recv(100)
    processes = [host, Process(place, 3, 1), Process(place, 3, 2)]
    assert [one.met.count for one in processes] == [3, 3, 3]
    in_turn(*(one.met.leave for one in processes))


def connected(place):
    for _ in range(100):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(host_and_port(place))
        time.sleep(0.01)
    raise TimeoutError


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_process_is_told_to_all(place, lost):
    processes = all_of(place, 3)
    cut(processes[lost])
    said = {one.news.get(timeout=5) for one in processes if one is not processes[lost]}
    assert said == {
        f"process {lost} ({socket.gethostname()}) was lost (it ended without a word): nothing that"
        " was saved is lost, and the same command in all 3 processes goes on."
    }
    assert all(one.met.wait_for_bad_news(0) for one in processes if one is not processes[lost])
    assert not any(one.met.finish() for one in processes if one is not processes[lost])
    assert all(one.news.empty() for one in processes)


def test_a_silent_machine_is_lost(place):
    host = Process(place, 2, 0, silence=0.3)
    with connected(place) as silent:
        silent.sendall(json.dumps(LINE).encode() + b"\n")
        assert host.met.hosts[1] == "far"
        assert "process 1 (far) was lost (nothing was heard of it for 0.3 s)" in host.news.get(
            timeout=5
        )


def test_beats_are_signs_of_life(place):
    processes = all_of(place, 2, silence=0.5)
    time.sleep(0.8)
    assert not any(one.met.wait_for_bad_news(0) for one in processes)
    in_turn(*(one.met.leave for one in processes))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_farewell_is_no_loss_in_any_order(place, order):
    processes = all_of(place, 3)
    for process in order:
        start = time.monotonic()
        processes[process].met.leave()
        assert time.monotonic() - start < 2
    assert not any(one.met.wait_for_bad_news(0.1) for one in processes)
    assert all(one.news.empty() for one in processes)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_quoted_to_all_others(place, failing):
    processes = all_of(place, 3)
    with pytest.raises(ValueError, match="disk"), processes[failing].met:
        raise ValueError("the disk is full.")
    said = {one.news.get(timeout=5) for one in processes if one is not processes[failing]}
    assert said == {f"process {failing} ({socket.gethostname()}) failed: the disk is full."}
    assert processes[failing].news.empty()


def test_all_that_fail_at_once_keep_their_own_words(place):
    processes = all_of(place, 3)
    for one in processes:
        one.met._ending = True  # each has found its own before it heard of the others'
    start = time.monotonic()
    in_turn(*(lambda one=one: one.met.failed("the same.") for one in processes))
    assert time.monotonic() - start < 2
    assert all(one.news.empty() for one in processes)


def test_the_end_of_the_work_is_awaited(place):
    processes = all_of(place, 3)
    early = [threading.Thread(target=one.met.finish, daemon=True) for one in processes[:2]]
    for one in early:
        one.start()
    early[0].join(0.2)
    assert all(one.is_alive() for one in early)
    assert processes[2].met.finish()
    for one in early:
        one.join(5)
    assert not any(one.is_alive() for one in early)
    in_turn(*(one.met.leave for one in processes))
    assert all(one.news.empty() for one in processes)


def test_process_0_ends_last(place):
    """The others end before process 0 does: JAX's service goes with it."""
    order = []
    processes = all_of(place, 3)
    for one in processes[1:]:
        one.met._on_loss = lambda sentence: (time.sleep(0.1), order.append("guest"))
    processes[0].met._on_loss = lambda sentence: order.append("host")
    cut(processes[2])
    processes[0].met._thread.join(5)
    assert order == ["guest", "host"]


def test_ctrl_c_at_process_0_is_told(place, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(meeting._Host, "_missing", interrupted)
    host, guest = Process(place, 3, 0, seconds=0.6), Process(place, 3, 1)
    assert isinstance(host.error, KeyboardInterrupt)
    assert "was stopped before all had come" in str(guest.error)
