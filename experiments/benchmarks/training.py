"""Time training: epochs, overhead of `train.fit`, losses with state, several seeds and devices.

    python -m experiments.benchmarks.training
    python -m experiments.benchmarks.training --torch_python=OTHER/bin/python --page=training.md
    python -m experiments.benchmarks.training --parts=epoch,seeds --out=training.json

The images are random. The parts:

  epoch      an epoch as one compiled loop, as single steps, and as PyTorch's plain loop
  objective  epochs with AdaFocal and with recall loss against cross-entropy
  fit        an epoch of `train.fit` against the compiled programs that it runs
  seeds      several seeds in one program against the same runs one after another
  networks   a step of each of the papers' networks, with and without `remat`; only if asked for
  devices    bytes that devices exchange in a step
  pixels     training and evaluation of a network for segmentation; only if asked for
  trees      the Tree-LSTM against a PyTorch loop over nodes; only if asked for
  tokens     a small Transformer against PyTorch's; only if asked for
  beam       its beam search against a plain one in PyTorch; only if asked for
  gpu        ResNet-50 against PyTorch's plain loop and the released one; by default on a GPU only

PyTorch runs in a separate process, in turns with JAX, with this Python or with --torch_python. If
PyTorch is not installed, its rows are missing.
"""

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

from calib_jax import train
from experiments.benchmarks import libraries, tables, timing
from experiments.benchmarks.training_work import (
    HEIGHT,
    WIDTH,
    Epochs,
    Evaluation,
    PairWork,
    Peer,
    PixelWork,
    Translation,
    TreeWork,
    Work,
    exchanged,
)

# Networks that the PyTorch loop has, too.
PEERS = ("resnet20", "resnet50", "tree_lstm", "transformer")
TORCH, RELEASED = "PyTorch, plain loop", "PyTorch, released loop"
SEARCHED, BEAM, NEW_TOKENS = "beam search", 4, 20  # as in torch_loop and torch_translation
Calls = dict[str, Any]  # Epochs and Peers by name.
Targets = Mapping[str, dict[str, float]]
Timings = list[tables.Row]


class Parts(NamedTuple):
    """The parts of the benchmark; each method returns rows."""

    work: Work
    rounds: int
    torch_python: str  # A Python with PyTorch; "" is the current one.
    num_seeds: int
    num_devices: int

    def _with(self, **changes: Any) -> Work:
        return dataclasses.replace(self.work, **changes)

    def _timed(self, task: str, calls: Calls, base: str, targets: Targets, **more: Any) -> Timings:
        """Time calls in turns; the base is the fastest of those whose name starts with `base`."""
        spent = timing.interleaved(calls, rounds=self.rounds, label=task)
        bases = [name for name in calls if name.startswith(base)]
        fastest = min(bases, key=lambda name: float(np.median(spent[name])))
        return self._rows(task, spent, fastest, targets, calls, **more)

    def _rows(
        self, task: str, spent: Any, base: str, targets: Targets, calls: Calls, speed: bool = True
    ) -> Timings:
        """Return the time and the speed of every call, and the statistics of its program."""
        work = self.work
        size: tables.Row = {"batch_size": work.batch_size, "steps": work.steps}
        rows = timing.compared(spent, base, targets=targets, speed=speed, task=task, **size)
        for row in rows:
            row |= {"model": work.model, "step_seconds": row["seconds"] / work.steps}
            row["images_per_second"] = work.batch_size / row["step_seconds"]
            row |= getattr(calls.get(row["name"]), "about", {})
        return rows

    def _beside_torch(self, task: str, calls: Calls, targets: Targets, *loops: str) -> Timings:
        """Time epochs in turns with PyTorch's loops, if PyTorch is there and has the network.

        The ratios and their targets are to the last loop.
        """
        work = self.work
        if work.model not in PEERS or not (self.torch_python or libraries.installed("torch")):
            return self._timed(task, calls, next(iter(calls)), {})
        # Threads that spin while they wait are faster on an idle CPU, far slower on a busy one.
        policies: dict[str, dict[str, str]] = {"": {}}
        if jax.default_backend() == "cpu":
            policies[", threads asleep"] = {"OMP_WAIT_POLICY": "PASSIVE"}
        name = SEARCHED if task == "beam" else work.model
        size = {"name": name, "batch_size": work.batch_size, "steps": work.steps}
        with contextlib.ExitStack() as stack:
            calls = dict(calls)
            for name in loops:
                options = size | {"stored": task == "gpu", "released": name == RELEASED}
                for suffix, policy in policies.items():
                    peer = calls[name + suffix] = Peer(self.torch_python, options, **policy)
                    stack.callback(peer.close)
            return self._timed(task, calls, loops[-1], targets)

    def epoch(self) -> Timings:
        """Time an epoch as one compiled loop, as single steps, and in PyTorch."""
        streamed = Epochs(self.work, feed=train.Streamed)
        calls: Calls = {"one compiled loop": Epochs(self.work), "step by step": streamed}
        on_cpu = jax.default_backend() == "cpu"
        targets = {name: {"at_least": 0.5} for name in calls if on_cpu}
        return self._beside_torch("epoch", calls, targets, TORCH)

    def objective(self) -> Timings:
        """Time epochs of objectives with a state against cross-entropy."""
        base, *others = names = ("cross_entropy", "adafocal", "recall")
        targets = {name: {"at_most": 1.02} for name in others}
        calls = {name: Epochs(self._with(loss=name)) for name in names}
        return self._timed("objective", calls, base, targets, speed=False)

    def fit(self) -> Timings:
        """Time epochs of `train.fit` in turns with the compiled programs that they run."""
        alone = Epochs(self._with(loss="adafocal"))
        task, loss = alone.experiment.task, alone.experiment.task.objective
        step = train.make_eval_step(
            task.forward, task.metrics, objective=loss, axis_name=train.AXIS
        )
        validation: Any = task.evaluated["validation"]
        feed = train.Resident(validation, alone.arrangement)
        evaluate = feed.evaluation(step, self.work.batch_size)
        times: list[tuple[float, ...]] = []

        def turn(_: int) -> float:
            """Run the programs alone when `fit` asks for a learning rate, once an epoch."""
            began = time.perf_counter()
            alone()
            evaluate(alone.states[0], [True])
            times.append((began, time.perf_counter()))
            return 0.1

        task = dataclasses.replace(task, learning_rate=turn)
        plan = dataclasses.replace(alone.experiment.plan, num_epochs=self.rounds + 2)
        with tempfile.TemporaryDirectory() as folder:
            train.fit(folder, alone.experiment.state(), task, plan, quiet=True)
        # The first epoch compiles the steps, the second the programs after an evaluation.
        began, ended = np.array(times).T
        whole = (began[1:] - ended[:-1])[1:]
        spent = {"programs alone": (ended - began)[2:], "train.fit": whole}
        rows = self._rows("fit", spent, "train.fit", {"train.fit": {"at_most": 0.03}}, {})
        rows[0]["ratio"] = None
        rows[1]["ratio"] = timing.ratio(whole - spent["programs alone"], whole)
        return rows

    def seeds(self) -> Timings:
        """Time several seeds in one program against runs one after another."""
        apart, seeds = f"{self.num_seeds} runs", tuple(range(self.num_seeds))
        ways = ["map", "vmap"] + ["devices"] * (jax.device_count() > 1)
        calls: Calls = {apart: Epochs(self.work, [(seed,) for seed in seeds])}
        calls |= {way: Epochs(self._with(over=way), [seeds]) for way in ways}
        rows = self._timed("seeds", calls, apart, {})
        for row in rows:
            row["images_per_second"] *= self.num_seeds
        # One run fills a CPU, so only "map" has a target there.
        on_cpu = jax.default_backend() == "cpu"
        best = rows[1] if on_cpu else min(rows[1:], key=lambda row: row["seconds"])
        best["target"] = {"at_least": 1.0 if on_cpu else 1.5}
        return rows

    def networks(self) -> Timings:
        """Compile and run a step, with and without recomputing activations (`remat`)."""
        forms = {"activations kept": {}, "activations recomputed": {"remat": True}}
        calls = {
            name: Epochs(self._with(loss="flsd53", options=options), feed=train.Streamed)
            for name, options in forms.items()
        }
        return self._timed("networks", calls, "activations kept", {}, speed=False)

    def devices(self) -> Timings:
        """Count the bytes that devices exchange in a step."""
        rows, share = [], max(1, self.work.batch_size // self.num_devices)
        for loss in ("cross_entropy", "mmce"):
            parts, size = exchanged(self._with(loss=loss, batch_size=share), self.num_devices)
            row: tables.Row = {"task": "devices", "name": f"{self.work.model}, {loss}"}
            row |= {"devices": self.num_devices, "bytes": parts.total(), "by_purpose": parts}
            rows.append(row | {"gradient_bytes": size})
        return rows

    def trees(self) -> Timings:
        """Time the Tree-LSTM in one compiled loop against PyTorch's loop over nodes."""
        work = TreeWork(self.work.model, self.work.batch_size, self.work.steps)
        calls: Calls = {"one compiled loop": Epochs(work)}
        targets = {name: {"at_least": 20.0} for name in calls}
        return self._beside_torch("trees", calls, targets, TORCH)

    def tokens(self) -> Timings:
        """Time a Transformer against PyTorch's layers, in target tokens per second."""
        work = PairWork(self.work.model, self.work.batch_size, self.work.steps)
        rows = self._beside_torch("tokens", {"one compiled loop": Epochs(work)}, {}, TORCH)
        for row in rows:
            row["tokens_per_second"] = work.tokens / row["step_seconds"]
        return rows

    def beam(self) -> Timings:
        """Time beam search over random sentences against a plain one in PyTorch."""
        ours = Translation(self.work.batch_size, beam=BEAM, length=NEW_TOKENS)
        return self._beside_torch("beam", {f"beam of {BEAM}": ours}, {}, TORCH)

    def pixels(self) -> Timings:
        """Time epochs and evaluations of a network for segmentation, in pixels per second."""
        work = PixelWork(self.work.model, self.work.batch_size, self.work.steps)
        base = "training, cross_entropy"
        calls: Calls = {
            base: Epochs(work),
            "training, recall": Epochs(dataclasses.replace(work, loss="recall")),
            "evaluation": Evaluation(work),
        }
        rows = self._timed("pixels", calls, base, {})
        for row in rows:
            row["pixels_per_second"] = row["images_per_second"] * HEIGHT * WIDTH
        return rows

    def gpu(self) -> Timings:
        """Time a large network in TF32 and bfloat16 against PyTorch's plain and released loops."""
        crops = "ours, TF32, crops and flips"
        calls = {
            "ours, TF32": Epochs(self._with(stored=True)),
            "ours, bfloat16": Epochs(self._with(stored=True, options={"dtype": "bfloat16"})),
            crops: Epochs(self._with(stored=True, augmented=True)),
        }
        return self._beside_torch("gpu", calls, {crops: {"at_least": 3.0}}, TORCH, RELEASED)


_COLUMNS: dict[str, tables.Cell] = {
    "": tables.text("name"),
    "network": lambda row: f"{row['model']}, {row['steps']} steps of {row['batch_size']}",
    "images/s": tables.number("images_per_second"),
    "s an epoch": tables.number("seconds"),
    "ms a step": tables.number("step_seconds", scale=1e3),
    **{"ratio": tables.ratio, "to": tables.text("against"), "target": tables.target},
    "s to compile": tables.number("compile_seconds"),
    "parameters": tables.number("parameters", ","),
    "GFLOP of a step": tables.number("flops", scale=1e-9),
    "MB of a step": tables.number("memory", scale=1e-6),
    "rounds": tables.text("rounds"),
}
_EXCHANGED = {
    **{"": tables.text("name"), "devices": tables.text("devices")},
    "of a step": tables.number("bytes", ","),
    "of the gradients": tables.number("gradient_bytes", ","),
    "ratio": lambda row: f"{row['bytes'] / row['gradient_bytes']:.3f}",
    "by part": lambda row: ", ".join(f"{key} {size:,}" for key, size in row["by_purpose"].items()),
}
_SPEED = "The ratio is of images per second."
SECTIONS = {
    "epoch": tables.Section("An epoch", _COLUMNS, _SPEED),
    "objective": tables.Section("Losses with a state", _COLUMNS, "The ratio is of the time."),
    "fit": tables.Section(
        "Outside the compiled programs",
        _COLUMNS,
        "The ratio is the share of an epoch of `train.fit` that is not spent in its programs.",
    ),
    "seeds": tables.Section("Several seeds in one program", _COLUMNS, _SPEED),
    "networks": tables.Section("A step of a network", _COLUMNS, "The ratio is of the time."),
    "devices": tables.Section(
        "Bytes that devices exchange",
        _EXCHANGED,
        "What one device gives to sums in a step; in a ring it sends up to twice that.",
    ),
    "trees": tables.Section(
        "Trees",
        {"trees/s" if title == "images/s" else title: cell for title, cell in _COLUMNS.items()},
        "Random binary trees as long as the SST's sentences. The ratio is of trees per second.",
    ),
    "pixels": tables.Section(
        "Pixels",
        {"": tables.text("name"), "pixels/s": tables.number("pixels_per_second", ",.0f")}
        | {title: cell for title, cell in _COLUMNS.items() if title},
        f"Random images of {WIDTH} x {HEIGHT} pixels. The ratio is of pixels per second.",
    ),
    "tokens": tables.Section(
        "Tokens",
        {"": tables.text("name"), "target tokens/s": tables.number("tokens_per_second", ",.0f")}
        | {title: cell for title, cell in _COLUMNS.items() if title and title != "images/s"},
        "Random sentences as long as those of Multi30k. The ratio is of tokens per second.",
    ),
    "beam": tables.Section(
        "Beam search",
        {"sentences/s" if title == "images/s" else title: cell for title, cell in _COLUMNS.items()},
        f"{BEAM} candidates of {NEW_TOKENS} tokens each. The ratio is of sentences per second.",
    ),
    "gpu": tables.Section("A large network", _COLUMNS, _SPEED),
}
PARTS = tuple(SECTIONS)
NETWORKS = ("resnet50", "resnet110", "wide_resnet26_10", "densenet121")
# Batch size and steps, so that on a CPU a step of any network takes 1 to 100 ms.
_SEEDED = {"mlp": (128, 100), "lenet5": (64, 20), "resnet20": (16, 4)}


def main(
    parts: Annotated[Sequence[str], f"Of {', '.join(PARTS)}; all by default."] = (),
    model: Annotated[str, "One of calib_jax.models; by default each part has its own."] = "",
    batch_size: Annotated[int, "Images of a step; 0 is 128, or fewer for seeds."] = 0,
    steps: Annotated[int, "Of an epoch; 0 is 10 on a CPU (fit: 30), 352 on a GPU."] = 0,
    rounds: tables.Rounds = 7,
    seeds: Annotated[int, "Runs of one program."] = 5,
    devices: Annotated[int, "That bytes are counted for."] = 8,
    torch_python: Annotated[str, "A Python with PyTorch; by default this one."] = "",
) -> tables.Report:
    """Measure the parts."""
    tables.check("parts", parts, PARTS)
    jax.config.update("jax_enable_compilation_cache", False)  # Compilation is timed.
    on_gpu = jax.default_backend() == "gpu"
    load, results = {}, list[tables.Row]()
    asked = {"networks", "trees", "pixels", "tokens", "beam"} | ({"gpu"} if not on_gpu else set())
    usual = [part for part in PARTS if part not in asked]
    for part in parts or usual:
        load[part] = os.getloadavg()[0]
        length = 352 if on_gpu else {"epoch": 10, "objective": 10, "fit": 30}.get(part, 352)
        sizes = {
            "gpu": {"resnet50": (128, length)},
            "networks": dict.fromkeys(NETWORKS, (2, 1)),
            "trees": {"tree_lstm": (25, 20)},  # An epoch of the SST has 276, which share its start.
            "tokens": {"transformer": (64, 2)},
            "beam": {"transformer": (32, 1)},
            "pixels": {"deeplab_small": (6, 352 if on_gpu else 10)},
            "seeds": dict.fromkeys(_SEEDED, (128, 300)) if on_gpu else _SEEDED,
        }.get(part, {"resnet20": (128, length)})
        if model:
            sizes = {model: sizes.get(model, next(reversed(sizes.values())))}
        for name, (size, length) in sizes.items():
            work = Work(name, batch_size or size, steps or length)
            results += getattr(Parts(work, rounds, torch_python, seeds, devices), part)()
    torch = [row["torch"] for row in results if "torch" in row]
    setting = {"load": load, "torch": torch[0] if torch else "not installed"}
    return tables.Report("Training: what it costs", results, SECTIONS, setting=setting)


if __name__ == "__main__":
    tables.run(main)
