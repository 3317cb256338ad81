"""Runs in several processes: all end, and each that does not says in one sentence why."""

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


class Run:
    """several.py in some processes of this machine."""

    def __init__(self, folder, count, *arguments):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.folder, self.count = folder, count
        environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
        # A proxy of the web that nobody should go through.
        environment |= {"http_proxy": "http://192.0.2.1:9", "JAX_PLATFORMS": "cpu"}
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.experiments.several"),
                    *(f"--coordinator=localhost:{port}", f"--num_processes={count}"),
                    *(f"--process_id={process}", f"--folder={folder}", *arguments),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=environment,
            )
            for process in range(count)
        ]

    def begun(self):
        """Wait until all have summed once."""
        end = time.monotonic() + 60
        while time.monotonic() < end and len(list(self.folder.iterdir())) < self.count:
            time.sleep(0.02)
        return self

    def ends(self):
        """Wait for all: exit codes, and what each has said to stdout and to stderr."""
        said = [process.communicate(timeout=60) for process in self.processes]
        codes = [process.returncode for process in self.processes]
        return codes, [out for out, _ in said], [err for _, err in said]


def lines(text):
    """What is said but for the line with which Gloo begins."""
    return [line for line in text.splitlines() if not line.startswith("[Gloo]")]


def test_one_is_done_before_the_other(tmp_path):
    codes, sums, said = Run(tmp_path, 2, "--deed=idle", "--actor=0").ends()
    assert codes == [0, 0], said
    assert [lines(one) for one in sums] == [["sum 3.0"], ["sum 3.0"]]
    assert [lines(one) for one in said] == [[], []]


def killed(folder, count, killed, number):
    run = Run(folder, count, "--deed=loop").begun()
    run.processes[killed].send_signal(number)
    start = time.monotonic()
    codes, _, said = run.ends()
    assert time.monotonic() - start < 5
    assert codes == [-number if one == killed else 1 for one in range(count)], said
    for process, one in enumerate(said):
        if process != killed:
            (line,) = lines(one)
            assert line.startswith(f"error: process {killed} (")
            assert "was lost" in line


def test_the_coordinator_is_killed(tmp_path):
    killed(tmp_path, 2, 0, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_another_is_killed(tmp_path, number):
    killed(tmp_path, 3, 1, number)


def refused(folder, actor):
    codes, _, said = Run(folder, 2, "--deed=refuse", f"--actor={actor}").ends()
    assert codes == [2 if process == actor else 1 for process in range(2)], said
    assert lines(said[actor]) == ["error: the actor will not."]
    (line,) = lines(said[1 - actor])
    assert line.startswith(f"error: process {actor} (")
    assert line.endswith("failed: the actor will not.")


def test_the_coordinator_refuses(tmp_path):
    refused(tmp_path, 0)


@pytest.mark.slow
def test_another_refuses(tmp_path):
    refused(tmp_path, 1)


@pytest.mark.slow
def test_a_bug_has_its_traceback_in_one_process_alone(tmp_path):
    codes, _, said = Run(tmp_path, 2, "--deed=err", "--actor=1").ends()
    assert codes == [1, 1]
    assert "Traceback" in said[1]
    (line,) = lines(said[0])
    assert line.endswith("failed: a bug")


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


HERE = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"coordinator": HERE}, "give --num_processes and --process_id, too"),
        ({"num_processes": 2}, "give --coordinator and --process_id, too, which --num_processes=2"),
        ({"coordinator": HERE, "process_id": 0}, "give --num_processes, too"),
        ({"process_id": 0, "num_processes": 1}, "give --coordinator, too"),
        ({"num_processes": 0}, "--num_processes=0: a run has 1 process at least"),
        ({"coordinator": HERE, "num_processes": 2, "process_id": 2}, "has 0 to 1"),
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
