"""Binaries as processes, with the settings of a user but for quick compiling."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from tests.flags import without

ROOT = pathlib.Path(__file__).parents[2]


def start(binary, *arguments):
    """Start `python -m experiments.BINARY`."""
    flags = without("xla_force_host_platform_device_count")
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{binary}", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
    )


def run(binary, *arguments):
    """Run it to its end; its exit code and all that it said."""
    with start(binary, *arguments) as process:
        output, _ = process.communicate(timeout=300)
    return process.returncode, output


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
