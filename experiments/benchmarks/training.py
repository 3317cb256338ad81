"""Time training: epochs, overhead of `train.fit`, losses with state, several seeds and devices.

    python -m experiments.benchmarks.training
    python -m experiments.benchmarks.training --torch_python=OTHER/bin/python --page=training.md
    python -m experiments.benchmarks.training --parts=epoch,seeds --out=training.json

The images are random. The parts:

  epoch      an epoch as one compiled loop, as single steps, and as PyTorch's plain loop
  objective  epochs with AdaFocal and with recall loss against cross-entropy
  fit        an epoch of `train.fit` against the compiled programs that it runs
  seeds      several seeds in one program against the same runs one after another
  devices    bytes that devices exchange in a step
  gpu        ResNet-50 against PyTorch's plain loop and the released one; by default on a GPU only

PyTorch runs in a separate process, in turns with JAX, with this Python or with --torch_python. If
PyTorch is not installed, its rows are missing. On two idle CPU cores all parts take about ten
minutes.
"""

import dataclasses
import functools
import importlib.util
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from calib_jax import losses, metrics, train
from calib_jax.train import memory
from experiments.benchmarks import programs, tables, timing
from experiments.benchmarks.training_work import Epochs, Peer, Work

METRICS = ("error", "nll", "ece", "brier", "mce", "adaptive_ece", "classwise_ece")
PEERS = ("resnet20", "resnet50")  # Networks that the PyTorch loop has, too.
TORCH, RELEASED = "PyTorch, plain loop", "PyTorch, released loop"
Rows = list[tables.Row]


def compared(
    task: str, work: Work, spent: dict[str, np.ndarray], base: str, calls: dict[str, Any]
) -> Rows:
    """Return a row for each call: its speed, as a ratio of the base's time to its own."""
    images, rows = work.batch_size * work.steps, []
    for name, seconds in spent.items():
        middle = float(np.median(seconds))
        row = {"task": task, "name": name, "model": work.model, "batch_size": work.batch_size}
        row |= {"steps": work.steps, "rounds": len(seconds), "seconds": middle}
        row |= {"step_seconds": middle / work.steps, "images_per_second": images / middle}
        row |= {"ratio": timing.ratio(spent[base], seconds), "against": base}
        rows.append(row | getattr(calls.get(name), "about", {}))
    return rows


class Parts(NamedTuple):
    """The parts of the benchmark; each method returns rows."""

    work: Work
    rounds: int
    torch_python: str  # A Python with PyTorch; "" is the current one.
    num_seeds: int
    num_devices: int
    about_torch: dict[str, Any]  # Filled with the description of PyTorch.

    def _beside_torch(
        self, task: str, calls: dict[str, Any], loops: dict[str, dict[str, Any]], base: str
    ) -> Rows:
        """Time JAX's epochs in turns with PyTorch's, if PyTorch is there and has the network."""
        work, calls, found = self.work, dict(calls), dict[str, Peer]()
        if work.model in PEERS and (self.torch_python or importlib.util.find_spec("torch")):
            size = {"name": work.model, "batch_size": work.batch_size, "steps": work.steps}
            # Threads that spin while they wait are faster on an idle CPU, far slower on a busy one.
            policies: dict[str, dict[str, str]] = {"": {}}
            if jax.default_backend() == "cpu":
                policies[", threads asleep"] = {"OMP_WAIT_POLICY": "PASSIVE"}
            for suffix, policy in policies.items():
                named = {name + suffix: size | options for name, options in loops.items()}
                peer = Peer(self.torch_python, named, **policy)
                calls |= {name: functools.partial(peer.epoch, name) for name in named}
                found |= dict.fromkeys(named, peer)
                self.about_torch.update(peer.about)
        spent = timing.interleaved(calls, rounds=self.rounds, label=task)
        bases = [name for name in found if name.startswith(base)] or list(calls)[:1]
        fastest = min(bases, key=lambda name: float(np.median(spent[name])))
        rows = compared(task, work, spent, fastest, calls)
        for row in rows:
            if row["name"] in found:
                row["memory"] = found[row["name"]].memory[row["name"]]
        for peer in set(found.values()):
            peer.close()
        return rows

    def epoch(self) -> Rows:
        """Time an epoch as one compiled loop, as single steps, and in PyTorch."""
        calls = {
            "one compiled loop": Epochs(self.work),
            "step by step": Epochs(self.work, feed=train.Streamed),
        }
        rows = self._beside_torch(
            "epoch", calls, {TORCH: {"stored": False, "released": False}}, TORCH
        )
        for row in rows:
            ours = "PyTorch" in row["against"] and "PyTorch" not in row["name"]
            if ours and jax.default_backend() == "cpu":
                row["target"] = {"at_least": 0.5}
        return rows

    def objective(self) -> Rows:
        """Time epochs of objectives with a state against cross-entropy."""
        names = ("cross_entropy", "adafocal", "recall")
        calls = {name: Epochs(self.work, losses.objective(name)) for name in names}
        spent = timing.interleaved(calls, rounds=self.rounds, label="objective")
        rows = compared("objective", self.work, spent, names[0], calls)
        for row in rows:
            row["ratio"] = timing.ratio(spent[row["name"]], spent[names[0]])  # Of the cost.
            if row["name"] != names[0]:
                row["target"] = {"at_most": 1.02}
        return rows

    def fit(self) -> Rows:
        """Time epochs of `train.fit` in turns with the compiled programs that they run."""
        work, loss = self.work, losses.objective("adafocal")
        alone = Epochs(work, loss)
        validation = work.source(max(work.batch_size * work.steps // 10, work.batch_size, 100))
        chosen = {name: metrics.named(name) for name in METRICS}
        forward = train.linen(work.module(train.AXIS))
        step = train.make_eval_step(forward, chosen, objective=loss, axis_name=train.AXIS)
        evaluate = train.Resident(validation, alone.arrangement).evaluation(step, work.batch_size)
        times: list[tuple[float, ...]] = []

        def turn(_: int) -> float:
            """Run the programs alone when `fit` asks for a learning rate, once an epoch."""
            began = time.perf_counter()
            alone()
            evaluate(alone.states[0], [True])
            times.append((began, time.perf_counter()))
            return 0.1

        task = train.Task(
            forward=forward,
            objective=loss,
            tx=work.tx,
            metrics=chosen,
            train=work.source(),
            evaluated={"validation": validation},
            num_classes=10,
            learning_rate=turn,
        )
        best = {"nll": "min", "error": "min"}
        plan = train.Plan(num_epochs=self.rounds + 2, batch_size=work.batch_size, best=best)
        with tempfile.TemporaryDirectory() as folder:
            train.fit(folder, work.state(loss), task, plan, quiet=True)
        # The first epoch compiles the steps, the second the programs after an evaluation.
        began, ended = np.array(times).T
        whole = (began[1:] - ended[:-1])[1:]
        spent = {"programs alone": (ended - began)[2:], "train.fit": whole}
        rows = compared("fit", work, spent, "train.fit", {})
        low, middle, high = np.percentile(1 - spent["programs alone"] / whole, [25, 50, 75])
        rows[1]["ratio"] = {"median": float(middle), "low": float(low), "high": float(high)}
        rows[1]["target"] = {"at_most": 0.03}
        del rows[0]["ratio"]
        return rows

    def seeds(self) -> Rows:
        """Time several seeds in one program against runs one after another."""
        on_cpu, apart = jax.default_backend() == "cpu", f"{self.num_seeds} runs"
        every = range(self.num_seeds)
        ways = ["map", "vmap"] + ["devices"] * (jax.device_count() > 1)
        calls = {apart: Epochs(self.work, groups=[(seed,) for seed in every])}
        calls |= {way: Epochs(self.work, groups=[tuple(every)], over=way) for way in ways}
        spent = timing.interleaved(calls, rounds=self.rounds, label="seeds")
        rows = compared("seeds", self.work, spent, apart, calls)
        # One run fills a CPU, so only "map" has a target there.
        best = "map" if on_cpu else min(ways, key=lambda way: float(np.median(spent[way])))
        for row in rows:
            row["images_per_second"] *= self.num_seeds
            if row["name"] == best:
                row["target"] = {"at_least": 1.0 if on_cpu else 1.5}
        return rows

    def devices(self) -> Rows:
        """Count the bytes that devices exchange in a step."""
        rows, share = [], max(1, self.work.batch_size // self.num_devices)
        images, labels = self.work.source(share).examples
        batch = train.Batch(jnp.asarray(images), jnp.asarray(labels), jnp.ones(share), labels)
        for name in ("cross_entropy", "mmce"):
            objective = losses.objective(name)
            state = jax.eval_shape(functools.partial(self.work.state, objective))
            step = self.work.step(objective, train.AXIS)
            parts = programs.exchanged(step, state, batch, devices=self.num_devices)
            row: tables.Row = {"task": "devices", "name": f"{self.work.model}, {name}"}
            row |= {"devices": self.num_devices, "bytes": parts.total(), "by_purpose": parts}
            rows.append(row | {"gradient_bytes": memory.size(state.params)})
        return rows

    def gpu(self) -> Rows:
        """Time a large network in two dtypes against PyTorch's plain and released loops."""
        plain = dataclasses.replace(self.work, stored=True)
        narrow = dataclasses.replace(plain, options={"dtype": "bfloat16"})
        calls = {
            "ours, float32": Epochs(plain),
            "ours, bfloat16": Epochs(narrow),
            "ours, float32, crops and flips": Epochs(dataclasses.replace(plain, augmented=True)),
        }
        loops: dict[str, dict[str, Any]] = {
            TORCH: {"stored": True, "released": False},
            RELEASED: {"stored": True, "released": True},
        }
        rows = self._beside_torch("gpu", calls, loops, RELEASED)
        for row in rows:
            if "PyTorch" in row["against"] and "crops" in row["name"]:
                row["target"] = {"at_least": 3.0}
        return rows


def _bytes(part: str) -> tables.Cell:
    return lambda row: f"{row['by_purpose'].get(part, 0):,}"


_COLUMNS: dict[str, tables.Cell] = {
    "": tables.text("name"),
    "network": lambda row: f"{row['model']}, {row['steps']} steps of {row['batch_size']}",
    "images/s": tables.number("images_per_second"),
    "s an epoch": tables.number("seconds"),
    "ms a step": tables.number("step_seconds", scale=1e3),
    **{"ratio": tables.ratio, "to": tables.text("against"), "target": tables.target},
    "s to compile": tables.number("compile_seconds"),
    "MB of a step": tables.number("memory", scale=1e-6),
    "rounds": tables.text("rounds"),
}
_EXCHANGED = {
    **{"": tables.text("name"), "devices": tables.text("devices")},
    "of a step": tables.number("bytes", ","),
    "of the gradients": tables.number("gradient_bytes", ","),
    "ratio": lambda row: f"{row['bytes'] / row['gradient_bytes']:.3f}",
    **{part: _bytes(part) for part in ("gradient", "batch norm", "loss")},
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
    "devices": tables.Section(
        "Bytes that devices exchange",
        _EXCHANGED,
        "What one device gives to sums in a step; in a ring it sends up to twice that.",
    ),
    "gpu": tables.Section("A large network", _COLUMNS, _SPEED),
}
PARTS = tuple(SECTIONS)
# Batch size and steps, so that on a CPU a step of any network takes 1 to 100 ms.
_SEEDED = {"mlp": (128, 100), "lenet5": (64, 20), "resnet20": (16, 4)}


def report(results: Rows, setting: tables.Row) -> tables.Report:
    """Build the report of these results."""
    return tables.Report("Training: what it costs", results, SECTIONS, setting=setting)


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
    logging.set_verbosity(logging.ERROR)  # Checkpoints log much.
    jax.config.update("jax_enable_compilation_cache", False)  # Compilation is timed.
    on_gpu = jax.default_backend() == "gpu"
    load, about, results = {}, dict[str, Any](), list[tables.Row]()
    for part in parts or [name for name in PARTS if name != "gpu" or on_gpu]:
        load[part] = os.getloadavg()[0]
        usual = {"epoch": 10, "objective": 10, "fit": 30}.get(part, 352)
        sizes = {"resnet50" if part == "gpu" else "resnet20": (128, 352 if on_gpu else usual)}
        if part == "seeds":
            sizes = dict.fromkeys(_SEEDED, (128, 300)) if on_gpu else _SEEDED
        if model:
            sizes = {model: sizes.get(model, next(reversed(sizes.values())))}
        for name, (size, length) in sizes.items():
            work = Work(name, batch_size or size, steps or length)
            made = Parts(work, rounds, torch_python, seeds, devices, about)
            results += getattr(made, part)()
    setting = {"load": load, "torch": about or "none", "backend": jax.default_backend()}
    return report(results, setting)


if __name__ == "__main__":
    tables.run(main)
