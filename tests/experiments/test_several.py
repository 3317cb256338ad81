"""Runs in several processes: flags, clusters, and how all end when one does."""

import os
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import cli, processes
from tests.experiments.processes import ROOT

HOST = "127.0.0.1"
KILLED_SECONDS, STOPPED_SECONDS = 60, 150  # until the others have ended


def started(folder, *arguments):
    """Start several.py in two processes, and wait until both have computed together."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    # A proxy that leads nowhere: machines of a run are reached without one.
    environment |= {"http_proxy": "http://192.0.2.1:9", "JAX_PLATFORMS": "cpu"}
    both = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.experiments.several", f"--folder={folder}"),
                *(f"--coordinator={HOST}:{port}", "--num_processes=2", f"--process_id={process}"),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        for process in range(2)
    ]
    end = time.monotonic() + 120
    while time.monotonic() < end and len(list(folder.iterdir())) < 2:
        time.sleep(0.05)
    return both


def ends(both, seconds=120):
    """Wait for both: exit codes, and what each has written to stdout and to stderr."""
    written = [process.communicate(timeout=seconds) for process in both]
    return [process.returncode for process in both], *zip(*written, strict=True)


def test_both_compute_together_and_end(tmp_path):
    codes, sums, errors = ends(started(tmp_path))
    assert codes == [0, 0], errors
    assert all(one.endswith("sum 3.0\n") for one in sums)


@pytest.mark.parametrize(
    ("deed", "victim"),
    [
        ("loop", 0),
        pytest.param("loop", 1, marks=pytest.mark.slow),
        pytest.param("idle", 1, marks=pytest.mark.slow),  # the other is not in a collective
    ],
)
def test_one_is_killed(tmp_path, deed, victim):
    both = started(tmp_path, f"--deed={deed}", f"--actor={1 - victim}")
    both[victim].kill()
    codes, _, errors = ends(both, KILLED_SECONDS)
    assert codes[victim] == -signal.SIGKILL, errors
    assert codes[1 - victim] in (cli.FAILED, -signal.SIGABRT)
    assert "another process has ended" in errors[1 - victim] or (
        "another task died" in errors[1 - victim]  # by JAX
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_is_stopped(tmp_path, victim):
    both = started(tmp_path, "--deed=loop")
    both[victim].send_signal(signal.SIGSTOP)
    codes, *_ = ends([both[1 - victim]], STOPPED_SECONDS)
    both[victim].send_signal(signal.SIGCONT)  # and it ends as soon as it runs again
    codes += ends([both[victim]], KILLED_SECONDS)[0]
    assert all(codes), codes


@pytest.mark.parametrize("actor", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_refuses(tmp_path, actor):
    codes, _, errors = ends(started(tmp_path, "--deed=refuse", f"--actor={actor}"))
    assert codes[actor] == cli.REFUSED, errors
    assert "error: the actor will not." in errors[actor]
    assert codes[1 - actor] in (cli.FAILED, -signal.SIGABRT), errors


@pytest.mark.slow
def test_a_bug_has_its_traceback_in_one_process_alone(tmp_path):
    codes, _, errors = ends(started(tmp_path, "--deed=err", "--actor=1"))
    assert codes[1] == 1
    assert "RuntimeError: a bug" in errors[1]
    assert codes[0] in (cli.FAILED, -signal.SIGABRT), errors
    assert "Traceback" not in errors[0]


@pytest.fixture
def jax_started(monkeypatch):
    """What JAX was started with: nothing starts."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **o: calls.append((a, o)))
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: calls.append("shutdown"))
    return calls


@pytest.fixture
def told(monkeypatch):
    """Set flags and variables for a test."""
    with flagsaver.flagsaver():
        flags.FLAGS.mark_as_parsed()

        def tell(variables=None, **values):
            for name, value in (variables or {}).items():
                monkeypatch.setenv(name, value)
            for name, value in values.items():
                flags.FLAGS[name].value = value

        yield tell


HERE = f"{HOST}:9"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"coordinator": HERE}, "without --num_processes and --process_id: give all three"),
        ({"num_processes": 2}, "--num_processes=2 without --coordinator and --process_id"),
        ({"coordinator": HERE, "process_id": 0}, "without --num_processes"),
        ({"process_id": 0, "num_processes": 1}, "without --coordinator"),
        ({"coordinator": HERE, "num_processes": 0, "process_id": 0}, "--num_processes=0"),
        ({"coordinator": HERE, "num_processes": 2, "process_id": 2}, "--process_id=2"),
        ({"coordinator": HERE, "num_processes": 2, "process_id": -1}, "--process_id=-1"),
        ({"coordinator": "here", "num_processes": 2, "process_id": 1}, "not HOST:PORT"),
    ],
)
def test_flags_that_do_not_fit(told, jax_started, values, words):
    told(**values)
    with pytest.raises(cli.Refused, match=words), processes.begin({}):
        pass
    assert not jax_started


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
URI = {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.1:1"}


@pytest.mark.parametrize(
    "variables", [SLURM, OPEN_MPI | URI, {"TPU_WORKER_HOSTNAMES": "a,b"}], ids=["s", "o", "t"]
)
def test_a_cluster_that_jax_knows(told, jax_started, variables):
    told(variables)
    with processes.begin({}):
        (((), options),) = jax_started
        assert not {"coordinator_address", "num_processes", "process_id"} & set(options)
    assert jax_started[1:] == ["shutdown"]


@pytest.mark.parametrize(
    ("variables", "values"),
    [
        ({}, {}),
        ({}, {"num_processes": 1}),
        ({}, {"coordinator": HERE, "num_processes": 1, "process_id": 0}),
        (SLURM, {"num_processes": 1}),  # flags win
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, {}),  # srun --ntasks=1 in a larger job
        ({**SLURM, "SLURM_NTASKS": "1"}, {}),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, {}),  # a batch script without srun
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, {}),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, {}),
    ],
)
def test_one_process(told, jax_started, variables, values):
    told(variables, **values)
    with processes.begin({}):
        pass
    assert not jax_started


def test_open_mpi_that_does_not_say_where(told, jax_started):
    told(OPEN_MPI)
    with pytest.raises(cli.Refused, match="--num_processes=2"), processes.begin({}):
        pass
    assert not jax_started


def test_a_cluster_that_jax_does_not_understand(told, monkeypatch):
    def initialize(**options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    told(SLURM)
    with pytest.raises(cli.Failed, match="on Slurm: coordinator_address"), processes.begin({}):
        pass
