"""All processes meet at one address, or each of them ends with a sentence that says why not."""

import concurrent.futures
import contextlib
import json
import socket
import threading
import time

import pytest

from experiments.running import cli, meeting
from tests.selection import some

FACTS = {"jax": "1"}
FACTS_OF_TWO = {"--num_processes": "2", **FACTS}
HELLO = json.dumps({"process": 1, "host": "far", "facts": FACTS_OF_TWO}).encode() + b"\n"


@pytest.fixture
def place():
    """A free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def meet(place):
    """Start a process in a thread."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:

        def start(process, count=2, facts=FACTS, *, seconds=20.0):
            return pool.submit(meeting.meet, place, count, process, facts, seconds=seconds)

        yield start


def connected(place):
    for _ in range(500):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(meeting.host_and_port(place))
        time.sleep(0.01)
    raise TimeoutError


def refusals(processes):
    """The sentences with which all of them end."""
    errors = [process.exception(30) for process in processes]
    assert [type(error) for error in errors] == [cli.Refused] * len(errors), errors
    return [str(error) for error in errors]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_come_and_the_port_is_free_again(place, meet, order):
    processes = [meet(process, 3) for process in order]
    assert [process.result(30) for process in processes] == [place] * 3
    with socket.create_server(meeting.host_and_port(place)):
        pass


def test_a_missing_process_is_named_to_all(place, meet):
    sentences = refusals([meet(process, 4, seconds=1.0) for process in (0, 2)])
    assert f"--process_id=1, 3 of 4 did not connect to {place}" in sentences[0]
    assert len({*sentences}) == 1


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([(1, 3), (1, 3)], "--process_id=1 was given twice"),
        ([(1, 4)], "--num_processes is 4 in process 1 .* and 3 in process 0"),
        ([(1, 3, {"jax": "2"})], "jax is 2 in process 1 .* and 1 in process 0"),
        ([(1, 3, {})], "jax is none in process 1 .* and 1 in process 0"),
        ([(1, 3, {**FACTS, "b": "2"})], "b is 2 in process 1 .* and none in process 0"),
    ],
)
def test_a_mistake_is_the_same_sentence_to_all(meet, others, words):
    sentences = refusals([meet(0, 3), *(meet(*other) for other in others)])
    assert len({*sentences}) == 1
    with pytest.raises(cli.Refused, match=words):
        raise cli.Refused(sentences[0])


@pytest.mark.parametrize("where", ["host", "fact"])
def test_what_a_peer_sends_is_quoted_in_one_line_without_control_characters(place, meet, where):
    text = "\x1b[2J far\nerror: \u202eall is well"
    hello = json.loads(HELLO)
    hello["facts"] = {**FACTS_OF_TWO, "jax": "2" if where == "host" else text}
    hello["host"] = text if where == "host" else "far"
    host = meet(0)
    with connected(place) as peer:
        peer.sendall(json.dumps(hello).encode() + b"\n")
        (sentence,) = refusals([host])
    assert sentence.isprintable()
    assert "all is well" in sentence


def test_a_port_in_use_and_an_address_of_another_machine(place, meet):
    with socket.create_server(meeting.host_and_port(place)):
        (sentence,) = refusals([meet(0)])
    assert f"cannot listen at --coordinator={place} (Address already in use):" in sentence
    with pytest.raises(cli.Refused, match="an address of the machine where process 0 runs"):
        meeting.meet("192.0.2.1:9", 2, 0, FACTS)  # an address that no machine has


@pytest.mark.parametrize(
    ("answer", "why"),
    [(None, "Connection refused"), (b"HTTP/1.1 400\r\n", "not process 0"), (b"", "not process 0")],
)
def test_process_0_cannot_be_reached(place, meet, answer, why):
    with contextlib.ExitStack() as stack:
        if answer is not None:
            server = stack.enter_context(socket.create_server(meeting.host_and_port(place)))
            threading.Thread(target=answer_all, args=(server, answer), daemon=True).start()
        (sentence,) = refusals([meet(1, seconds=1.0)])
    assert f"process 0 at --coordinator={place} did not start the run in time" in sentence
    assert why in sentence


def answer_all(server, answer):
    with contextlib.suppress(OSError):
        while True:
            with server.accept()[0] as connection:
                connection.sendall(answer)


@pytest.mark.parametrize(
    "coordinator", ["here", ":1", "here:", "here:port", "here:0", "here:70000", "here:-1", "here:²"]
)
def test_no_address(coordinator):
    with pytest.raises(cli.Refused, match=f"^--coordinator={coordinator} is not HOST:PORT"):
        meeting.host_and_port(coordinator)


@pytest.mark.parametrize(
    "sent",
    some(
        [
            b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
            b"\x16\x03\x01\xff\xfe\n",
            b"[" * 4000 + b"\n",
            b"7\n",
            b'{"process": 1}\n',
            HELLO.replace(b"1", b'"1"', 1),
            HELLO[:-1] + b" " * 5000,
            HELLO[:9],
            b"",
        ],
        3,
    ),
)
def test_a_stranger_is_no_process(place, meet, monkeypatch, sent):
    monkeypatch.setattr(meeting, "_READ_SECONDS", 0.3)
    host = meet(0)
    with connected(place) as stranger:
        stranger.sendall(sent)
        guest = meet(1)
        assert host.result(30) == guest.result(30) == place


def test_a_process_that_went_may_come_again(place, meet):
    host = meet(0, 3)
    with connected(place) as first:
        first.sendall(HELLO.replace(b'"2"', b'"3"'))
    again = [meet(1, 3), meet(2, 3)]
    assert [process.result(30) for process in (host, *again)] == [place] * 3
