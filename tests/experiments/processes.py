"""Binaries as processes, with the settings of a user but for quick compiling."""

import atexit
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from tests.flags import with_default, without

ROOT = pathlib.Path(__file__).parents[2]


def environment():
    """Return the variables of a binary: a user has no simulated devices.

    Its programs are not optimized in any selection of tests, so that selections share them.
    """
    flags = with_default("xla_backend_optimization_level", "0")
    return os.environ | {"XLA_FLAGS": without("xla_force_host_platform_device_count", flags)}


def start(binary, *arguments):
    """Start `python -m experiments.BINARY`."""
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{binary}", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment(),
    )


@functools.cache
def zygote():
    """Start the process that forks for `run`; it ends when its input is closed."""
    process = subprocess.Popen(
        [sys.executable, pathlib.Path(__file__).with_name("zygote.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment() | {"PYTHONPATH": str(ROOT)},
    )
    atexit.register(process.communicate)
    return process


def run(binary, *arguments):
    """Run `python -m experiments.BINARY` to its end, in a fork of a process with the libraries.

    Returns:
      its exit code, and all that it printed.
    """
    process = zygote()
    with tempfile.NamedTemporaryFile("r") as output:
        request = {
            "module": f"experiments.{binary}",
            "arguments": list(map(str, arguments)),
            "environment": environment(),
            "output": output.name,
        }
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        code = process.stdout.readline()
        assert code, "the process that runs the binaries has ended"
        return int(code), output.read()


def stop_after(process, folder, rows, seconds=0.0, number=signal.SIGKILL):
    """Send a signal some time after the log has so many rows, unless it has ended by then."""
    log = folder / "metrics.jsonl"
    while process.poll() is None:
        if log.exists() and log.read_text().count("\n") >= rows:
            time.sleep(seconds)
            process.send_signal(number)
            break
        time.sleep(0.01)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output
