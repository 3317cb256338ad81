"""The kinds of runs under attack, each a command on tiny data with a network of two parameters."""

import dataclasses
import pathlib
import shutil
import signal
import socket
import time
from collections.abc import Callable

from experiments.map.settings import ENCODER
from tests.data import tiny, tiny_intents
from tests.experiments.processes import Fork
from tests.faults.ends import difference, end_of

NETWORK = "--config.model.name=tests.faults.tiny:Line"
PATIENCE = 300  # seconds after which a run counts as lost
SHORT = ("--config.num_epochs=8", NETWORK)


@dataclasses.dataclass
class Kind:
    """A kind of run.

    Attributes:
      name: its name in the table.
      binary: the binary.
      arguments: its arguments, given the folder of the run and the folder of the data.
      prepare: earlier commands in the same folder; the faults do not hit these.
      before: functions called in every process first, see `Fork`.
      processes: the number of processes of the run.
    """

    name: str
    binary: str
    arguments: Callable[[pathlib.Path, pathlib.Path], tuple[str, ...]]
    prepare: "Kind | None" = None
    before: tuple[tuple[str, ...], ...] = ()
    processes: int = 1


DIGITS = ("--config=configs/digits.py:adafocal", *SHORT, "--config.data.options.training_size=100")
ONE_SEED = Kind("one seed", "train", lambda run, data: (*DIGITS, f"--workdir={run}"))
IMAGES = (
    "--config=configs/own_images.py:focal",
    *SHORT,
    *("--config.batch_size=4", "--config.run.keep=4"),
    *("--config.data.options.height=8", "--config.data.options.width=8"),
)
STREAM = Kind(
    "stream of own images",
    "train",
    lambda run, data: (
        *IMAGES,
        "--config.run.resident_bytes=0",
        f"--config.data.options.folder={data}/own_images",
        f"--workdir={run}",
    ),
)
TEXT = Kind(
    "text",
    "train",
    lambda run, data: (
        "--config=configs/own_texts.py:recall",
        *SHORT,
        f"--config.data.options.csv_file={data}/own_texts.csv",
        f"--workdir={run}",
    ),
)
SEGMENTATION = Kind(
    "segmentation",
    "train",
    lambda run, data: (
        "--config=configs/camvid_deeplab_small.py:recall",
        *SHORT,
        "--config.model.options.pixels=True",
        *("--config.data.options.height=12", "--config.data.options.width=16"),
        f"--data_dir={data}",
        f"--workdir={run}",
    ),
)
VECTORS = Kind(
    "vectors",
    "train",
    lambda run, data: (
        "--config=configs/intents_mlp.py:focal",
        *SHORT,
        f"--config.data.options.folder={data}/banking77",
        f"--workdir={run}",
    ),
)
SWEEP = Kind(
    "sweep",
    "sweep",
    lambda run, data: (
        "--config=configs/digits.py",
        *SHORT,
        "--config.data.options.training_size=100",
        *("--losses=cross_entropy,adafocal", "--seeds=2", "--resamples=100"),
        f"--workdir={run}",
    ),
)
MAP = Kind(
    "map",
    "map.run",
    lambda run, data: (
        f"--vectors={data}",
        f"--workdir={run}/networks",
        f"--records={run}/records",
        "--texts=banking77",
    ),
    before=(("tests.faults.before:shorten_the_map",),),
)
EVALUATION = Kind(
    "evaluation",
    "evaluate",
    lambda run, data: (f"--workdir={run}", "--allow_imports", "--resamples=20"),
    prepare=ONE_SEED,
)
TWO_PROCESSES = Kind(
    "two processes", "train", lambda run, data: (*DIGITS, f"--workdir={run}"), processes=2
)
THREE_SEEDS = Kind(
    "three seeds",
    "train",
    lambda run, data: (
        *DIGITS,
        f"--workdir={run}",
        *("--config.num_seeds=3", "--config.run.over=vmap"),
    ),
)
TRAININGS = (ONE_SEED, THREE_SEEDS, STREAM, TEXT, SEGMENTATION)


class Place:
    """A folder with tiny data, and a new subfolder for each try."""

    def __init__(self, root):
        self.root, self.data, self._count = root, root / "data", 0
        self.data.mkdir()
        tiny.own_images(self.data, {"cat": 12, "dog": 10})
        tiny.own_texts(self.data)
        tiny.camvid(self.data)
        tiny_intents.vectors(self.data, "banking77", encoder=ENCODER)
        self._whole, self._half = {}, {}

    def new(self, kind, *, copy_of=None, inside=None):
        """Return a new folder for a run, after the commands that precede its kind."""
        self._count += 1
        folder = (inside or self.root) / f"run_{self._count}"
        if copy_of is not None:
            shutil.copytree(copy_of, folder)
        elif kind.prepare is not None:
            shutil.copytree(self.whole(kind.prepare).folder, folder)
        return folder

    def start(self, kind, folder, *, before=()):
        """Start the processes of a run."""
        arguments = kind.arguments(folder, self.data)
        functions = (*kind.before, *before)
        if kind.processes == 1:
            return Started([Fork(kind.binary, *arguments, before=functions)])
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        together = (f"--coordinator=127.0.0.1:{port}", f"--num_processes={kind.processes}")
        return Started(
            [
                Fork(kind.binary, *arguments, *together, f"--process_id={k}", before=functions)
                for k in range(kind.processes)
            ]
        )

    def whole(self, kind):
        """Run a kind undisturbed, once."""
        if kind.name not in self._whole:
            folder = self.new(kind)
            first = self.start(kind, folder)  # compiles
            assert first.wait() == 0, first.output()
            folder = self.new(kind)
            began = time.monotonic()
            second = self.start(kind, folder)
            assert second.wait() == 0, second.output()
            seconds = time.monotonic() - began
            whole = Whole(folder, end_of(folder), seconds, second.output())
            assert not difference(whole.end, whole.end)
            self._whole[kind.name] = whole
        return self._whole[kind.name]

    def half(self, kind):
        """Return the folder of a run that was stopped in its fourth checkpoint."""
        if kind.name not in self._half:
            folder = self.new(kind)
            stop = ("tests.faults.before:signal_in_save", int(signal.SIGTERM), 4)
            run = self.start(kind, folder, before=[stop])
            assert run.wait() == 128 + signal.SIGTERM, run.output()
            self._half[kind.name] = folder
        return self._half[kind.name]

    def judge(self, row, kind, folder, run, *, apart=""):
        """Wait for a run that should reach the end of an undisturbed one; return its outcome.

        The file `apart` of the folder is not compared.
        """
        code = run.wait(PATIENCE)
        if code is None:
            run.send_signal(signal.SIGKILL)
            run.wait()
            return "lost", f"not ended after {PATIENCE} seconds: {run.output()[-500:]}"
        row.read(run)
        if code == 2 and "error: " in run.output():
            return "refused", run.output()[-500:]
        if code != 0:
            return "lost", f"exit code {code}: {run.output()[-500:]}"
        why = self.difference(kind, folder, apart=apart)
        return ("wrong", f"{why} differ: {run.output()[-500:]}") if why else ("survived", "")

    def hit(self, row, kind, folder, *, before=(), mend=None):
        """Start a run under a fault, mend the fault, and give the command again.

        Args:
          row: the row that counts the try; a refusal of the second command is a loss.
          kind: the kind of run.
          folder: its folder.
          before: functions that break the system under the first command.
          mend: mends what is broken otherwise.
        """
        broken = self.start(kind, folder, before=before)
        broken.wait(PATIENCE)
        broken.send_signal(signal.SIGKILL)  # if it hangs
        broken.wait()
        row.read(broken)
        if mend is not None:
            mend()
        outcome, note = self.judge(row, kind, folder, self.start(kind, folder))
        row.add("lost" if outcome == "refused" else outcome, f"{broken.output()[-500:]}\n{note}")

    def difference(self, kind, folder, *, apart=""):
        """Name what differs between a folder and that of the undisturbed run; "" if nothing."""
        whole = self.whole(kind).end
        try:
            end = end_of(folder, apart)
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return difference({name: whole[name] for name in whole if name != apart}, end)


@dataclasses.dataclass
class Whole:
    """An undisturbed run: its folder, its end, its duration and what it printed."""

    folder: pathlib.Path
    end: dict
    seconds: float
    output: str


class Started:
    """The processes of one run."""

    def __init__(self, processes):
        self.processes = processes

    def wait(self, timeout=None):
        """Return the exit code of process 0, or None if a process still runs after the time."""
        codes = [process.wait(timeout) for process in self.processes]
        return None if None in codes else codes[0]

    def send_signal(self, number):
        """Send a signal to every process."""
        for process in self.processes:
            process.send_signal(number)

    def poll(self):
        """Return the exit code of process 0, or None while a process runs."""
        return self.wait(0)

    def output(self):
        """Return all that process 0 printed, and then the others."""
        return "".join(process.output() for process in self.processes)
