"""Two processes train what one does: the state, the log, the checkpoints; what they broadcast."""

import os
import pathlib
import socket
import subprocess
import sys
import types
from unittest import mock

import jax
import numpy as np
import pytest

from calib_jax import train
from calib_jax.train import loop, pmap
from tests.train import several
from tests.train.test_loop import rows_in

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def in_two(tmp_path_factory):
    """The files of both processes."""
    folder = tmp_path_factory.mktemp("two")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.several", str(port), str(process), str(folder)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(several.PROCESSES)
    ]
    output = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(output)
    return folder


@pytest.fixture(scope="module")
def in_one(tmp_path_factory):
    """The files of one process with two devices, and its states."""
    folder = tmp_path_factory.mktemp("one")
    with jax.enable_x64(True):
        return folder, several.trained(folder, train.local_devices(2))


@pytest.mark.slow
def test_two_processes_are_one(in_two, in_one):
    """Every process ends with the state that one gives: on the devices, and streamed."""
    for name, state in in_one[1].items():
        for process in range(several.PROCESSES):
            with np.load(in_two / f"{name}_of_{process}.npz") as arrays:
                for own, wanted in zip(arrays.values(), jax.tree.leaves(state), strict=True):
                    assert own.dtype == wanted.dtype
                    np.testing.assert_allclose(own, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_broadcast_keeps_every_bit(in_two):
    for process in range(several.PROCESSES):
        with np.load(in_two / f"communicated_{process}.npz") as arrays:
            for name, wanted in several.special().items():
                assert arrays[name].dtype == wanted.dtype
                assert arrays[name].shape == wanted.shape
                assert arrays[name].tobytes() == wanted.tobytes()


@pytest.mark.slow
def test_the_first_process_alone_writes(in_two, in_one, x64):
    """So the folder is that of one process, where one process can go on."""
    for name in in_one[1]:
        ours, theirs = (folder / name for folder in (in_two, in_one[0]))
        assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
        for one, other in zip(rows_in(ours), rows_in(theirs), strict=True):
            assert one == pytest.approx(other, rel=1e-6)
        assert len((ours / "environment.jsonl").read_text().splitlines()) == 1
    again = several.trained(in_two, train.local_devices(1))
    assert int(again["resident"].step) == 12


def test_more_processes_than_examples(tmp_path, monkeypatch):
    many = types.SimpleNamespace(number=39)
    monkeypatch.setattr(loop, "Processes", lambda devices: many)
    with pytest.raises(ValueError, match="39 processes cannot share 38 examples"):
        several.trained(tmp_path)


def test_processes_hear_the_first_one_and_agree_on_the_largest(monkeypatch):
    """Two processes in turn, in one: a list stands in for the network."""
    sent = []

    def exchanged(tree):
        if jax.process_index():
            return sent.pop(0)
        sent.append(tree)
        return tree

    gathered = lambda own: np.stack([own, [5, -1]])  # noqa: E731
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(pmap.multihost_utils, "broadcast_one_to_all", exchanged)
    monkeypatch.setattr(pmap.multihost_utils, "process_allgather", gathered)
    devices = [mock.Mock(spec=jax.Device, process_index=process) for process in (0, 1)]
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        both = pmap.Processes(devices)
        assert (both.number, both.leads, both.largest(3, 0)) == (2, process == 0, [5, 0])
        assert pmap.Processes(devices[process : process + 1]).leads
        assert both.broadcast(lambda process=process: b"01"[process:]) == b"01"
        bits = several.special()
        heard = both.broadcast_tree(jax.tree.map(np.zeros_like, bits) if process else bits)
        assert all(heard[name].tobytes() == leaf.tobytes() for name, leaf in bits.items())


def test_a_step_of_several_processes_gets_arrays_over_all_devices(monkeypatch):
    devices = train.local_devices(2)
    assert pmap.axis_of(devices[:1]) is None  # with an axis a step of one device is slower
    run = pmap.data_parallel(lambda x: 2 * x, devices)
    assert pmap.for_many_calls(run, devices) is run
    monkeypatch.setattr(pmap, "of_this_process", lambda devices: devices[:1])
    rows = train.split(np.arange(6.0).reshape(2, 3), devices)
    np.testing.assert_array_equal(pmap.for_many_calls(run, devices)(rows), 2 * rows)
