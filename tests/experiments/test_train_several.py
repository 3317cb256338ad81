"""`experiments.train` in two processes: killed, asked to stop, started with what cannot be."""

import re
import signal
import socket
import time

import pytest

from tests.experiments.processes import run, start
from tests.experiments.test_killed import end_of

LOSS = "adafocal"


def arguments(folder, epochs=30, *more):
    return (
        f"--config=configs/digits.py:{LOSS}",
        f"--workdir={folder}",
        f"--config.num_epochs={epochs}",
        "--config.model.options.hidden=(32,)",
        *more,
    )


def two(folder, *more):
    """Start both processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = (f"--coordinator=127.0.0.1:{port}", "--num_processes=2")
    return [
        start("train", *arguments(folder, *more), *flags, f"--process_id={process}")
        for process in range(2)
    ]


def ends(processes):
    """Wait for all: their codes, and what they said but for Gloo's greeting."""
    said = [process.communicate(timeout=120)[0] for process in processes]
    said = [re.sub(r"^\[Gloo\].*\n", "", text, flags=re.MULTILINE) for text in said]
    return [process.returncode for process in processes], said


def wait_for(folder, rows, processes):
    log = folder / "metrics.jsonl"
    while all(process.poll() is None for process in processes):
        if log.exists() and log.read_text().count("\n") >= rows:
            return
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    codes, said = ends(two(folder))
    assert codes == [0, 0], said
    assert "next: python -m experiments.evaluate" in said[0]
    assert said[1] == ""
    return end_of(folder, LOSS)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_one_of_two_is_killed_and_both_go_on(tmp_path, whole, victim):
    processes = two(tmp_path)
    wait_for(tmp_path, 3, processes)
    processes[victim].kill()
    killed = time.monotonic()
    codes, said = ends(processes)
    assert time.monotonic() - killed < 20
    assert codes[victim] == -signal.SIGKILL
    survivor = said[1 - victim]
    assert codes[1 - victim] == 1
    assert f"error: process {victim}" in survivor
    assert "was lost" in survivor
    assert "Traceback" not in survivor
    assert survivor.splitlines()[-1].startswith("error: ")
    codes, said = ends(two(tmp_path))
    assert codes == [0, 0], said
    assert "going on from step" in said[0]
    assert end_of(tmp_path, LOSS) == whole


def test_one_of_two_is_asked_to_stop_and_both_leave_at_one_step(tmp_path):
    processes = two(tmp_path)
    wait_for(tmp_path, 2, processes)
    processes[1].send_signal(signal.SIGTERM)
    codes, said = ends(processes)
    assert codes == [143, 143], said
    assert "stopped by SIGTERM after step" in said[0]
    code, alone = run("train", *arguments(tmp_path))  # one process goes on where two have left
    assert code == 0, alone
    assert "going on from step" in alone
