"""Binaries as processes, with the settings of a user but for quick compiling; their folders."""

import atexit
import csv
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorstore

from calib_jax import plots
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
    """Start the process that forks for `Fork`; it ends when its input is closed."""
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


class Fork:
    """`python -m experiments.BINARY` in a fork of a process that has the libraries.

    Args:
      binary: the name of the binary.
      arguments: its arguments.
      before: functions that the fork calls first, each an import path with its arguments.
    """

    def __init__(self, binary, *arguments, before=()):
        self._output = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 (open until collected)
        self.returncode = None
        self.pid = _ask(
            {
                "module": f"experiments.{binary}",
                "arguments": list(map(str, arguments)),
                "environment": environment(),
                "output": self._output.name,
                "before": [list(function) for function in before],
            }
        )

    def poll(self):
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = _ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout=None):
        """Return the exit code, or None if it still runs after so many seconds."""
        if timeout is None and self.returncode is None:
            self.returncode = _ask({"wait": self.pid})
        end = time.monotonic() + (timeout or 0)
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number):
        """Send a signal, unless `poll` or `wait` has seen the end."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def output(self):
        """Return all that it has printed so far."""
        self._output.seek(0)
        return self._output.read()


def _ask(request):
    process = zygote()
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, "the process that runs the binaries has ended"
    return json.loads(answer)


def finish(binary, *arguments, code=0, before=()):
    """Run `python -m experiments.BINARY`, in a fork of a process with the libraries.

    It must end with an exit code.

    Returns:
      all that it printed.
    """
    process = Fork(binary, *arguments, before=before)
    ended, output = process.wait(), process.output()
    assert ended == code, output
    return output


def without_drawing():
    """Leave the pictures of a report empty: to draw them is a third of its time."""
    plots.save = lambda figure, path, **options: pathlib.Path(path).touch()
    plots.inline_svg = lambda figure, name, **options: ""


UNDRAWN = ((f"{__name__}:{without_drawing.__name__}",),)


def refused(binary, *arguments):
    """Run a binary that must end with a mistake in one sentence, and return the sentence."""
    output = finish(binary, *arguments, code=2)
    assert output.startswith("error: "), output
    assert output.count("\n") == 1, output
    return output


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


# Keys of rows and records that differ between two undisturbed runs.
TIMES = {
    "seconds",
    "evaluation_seconds",
    "examples_per_second",
    "provenance",
    "date",
    "command",
    "commit",
}
# Other files are compared by name only: pages and pictures show times, and logs list the starts.
APART = (".lock", ".lock-evaluation", "log.txt", "environment.jsonl")
DAMAGED = ".damaged"  # the copy of a damaged file, which the library keeps


def end_of(folder, apart=""):
    """Return the contents of a folder by name, with the arrays of the newest checkpoints.

    The file `apart` is left out.

    The arrays are read from the files, without the library and without orbax.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        inside = {"checkpoints", ".compiled"} & set(path.relative_to(folder).parts[:-1])
        if path.name == "checkpoints":
            step = max(int(entry.name) for entry in path.glob("[0-9]*"))
            found[f"{name}/STEP"] = step
            for key, value in arrays_of(path / str(step) / "state").items():
                found[f"{name}/{key}"] = value
        elif path.is_file() and not (
            inside or name == apart or path.name in APART or path.suffix == DAMAGED
        ):
            found[name] = content_of(path)
    return found


def arrays_of(state):
    """Return the stored bytes of every array of a checkpoint."""
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{state}/"}).result()
    return {key.decode(): store.read(key).result().value for key in store.list().result()}


def content_of(path):
    """Return what must be equal in a file."""
    match path.suffix:
        case ".npz":
            with np.load(path) as file:
                return {key: (file[key].dtype.str, file[key].tobytes()) for key in file.files}
        case ".jsonl":
            return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        case ".json":
            return without_times(json.loads(path.read_text()))
        case ".csv":
            with path.open() as lines:
                return [without_times(row) for row in csv.DictReader(lines)]
    return None


def without_times(value):
    """Drop the keys in `TIMES`, also those inside."""
    if isinstance(value, dict):
        return {key: without_times(entry) for key, entry in value.items() if key not in TIMES}
    return list(map(without_times, value)) if isinstance(value, list) else value
