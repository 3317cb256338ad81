"""Several processes: flags, clusters that JAX detects, and a training that is killed or stopped."""

import re
import signal
import socket
import time

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.running import training
from tests.experiments.processes import end_of, start

LOSS = "adafocal"
PROCESSES = training.define_processes()


def two(folder, each=("", "")):
    """Start both processes, with one more argument each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = (
        f"--config=configs/digits.py:{LOSS}",
        f"--workdir={folder}",
        "--config.num_epochs=30",
        "--config.model.options.hidden=(32,)",
        f"--coordinator=127.0.0.1:{port}",
        "--num_processes=2",
    )
    return [
        start("train", *arguments, f"--process_id={process}", *filter(None, [one]))
        for process, one in enumerate(each)
    ]


def ends(processes, seconds=180):
    """Wait for all: their codes, and what they said but for Gloo's greeting."""
    output = [process.communicate(timeout=seconds)[0] for process in processes]
    output = [re.sub(r"^\[Gloo\].*\n", "", text, flags=re.MULTILINE) for text in output]
    return [process.returncode for process in processes], output


def wait_for(folder, rows, processes):
    log = folder / "metrics.jsonl"
    while all(process.poll() is None for process in processes):
        if log.exists() and log.read_text().count("\n") >= rows:
            return
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def a_proxy_that_leads_nowhere(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The end of a run in two processes that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    codes, output = ends(two(folder))
    assert codes == [0, 0], output
    assert "next: python -m experiments.evaluate" in output[0]
    assert output[1] == ""
    return end_of(folder)


def goes_on_to_the_same_end(folder, whole):
    codes, output = ends(two(folder))
    assert codes == [0, 0], output
    assert "going on from step" in output[0]
    assert end_of(folder) == whole


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGKILL, 60), (signal.SIGSTOP, 150)])
def test_one_of_two_is_lost_and_both_go_on(tmp_path, whole, victim, number, seconds):
    processes = two(tmp_path)
    wait_for(tmp_path, 3, processes)
    processes[victim].send_signal(number)
    codes, output = ends([processes[1 - victim]], seconds)
    assert codes[0] in (1, -signal.SIGABRT), output  # by our sentence, or by JAX
    processes[victim].send_signal(signal.SIGCONT)  # a stopped one ends as soon as it runs again
    codes, output = ends([processes[victim]], seconds)
    assert codes[0] in (1, -signal.SIGABRT, -signal.SIGKILL), output
    goes_on_to_the_same_end(tmp_path, whole)


@pytest.mark.slow
def test_one_of_two_is_asked_to_stop_and_both_go_on(tmp_path, whole):
    processes = two(tmp_path)
    wait_for(tmp_path, 2, processes)
    processes[1].send_signal(signal.SIGTERM)
    codes, output = ends(processes)
    assert codes == [143, 143], output
    assert "stopped by SIGTERM after step" in output[0]
    assert output[1] == ""
    goes_on_to_the_same_end(tmp_path, whole)


@pytest.mark.slow
def test_two_with_different_configs(tmp_path):
    codes, output = ends(two(tmp_path, each=["--config.batch_size=50", "--config.batch_size=51"]))
    assert codes == [2, 2], output
    message = "error: the processes have different configs or versions: start all with the same"
    assert all(text.startswith(message) for text in output)


@pytest.fixture
def starts_with(monkeypatch):
    """Begin with some variables; return the options with which JAX starts and stops."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: calls.append(options))
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: calls.append("shutdown"))
    monkeypatch.setattr(training.multihost_utils, "process_allgather", np.atleast_1d)

    def begin(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with training.begin(PROCESSES, {}):
            pass
        return calls

    with flagsaver.flagsaver():
        flags.FLAGS.mark_as_parsed()
        yield begin


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
def test_a_cluster_that_jax_knows(starts_with, variables):
    options, last = starts_with(variables)
    assert not {"coordinator_address", "num_processes", "process_id"} & set(options)
    assert last == "shutdown"
