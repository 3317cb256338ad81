r"""Train the papers' own network with the law's losses, and time training, losses and metrics.

    JAX_COMPILATION_CACHE_DIR=CACHE python -m experiments.benchmarks.gpu --data_dir=DIR \
        --json=gpu.json
    python -m experiments.benchmarks.gpu --of=digits --epochs=2 --minutes=2 --json=try.json

It takes at most --minutes. It looks for the data first. Then it times the step of ResNet-8 with the
update of the parameters selected and in a branch, the step of ResNet-50 in bfloat16 beside
PyTorch's plain loop, some losses and the metrics. Then it trains ResNet-50 on CIFAR-10 in bfloat16,
all seeds at once, each in a process: cross-entropy, FL-3, matched focal loss with the gamma of this
seed's cross-entropy, BSCE-GRA and AdaFocal. A training starts only if one as long as the last still
fits. Each seed has a JSON file beside --json, written after each training: temperature, error,
signed gap, NLL, CE2 before and after T, and the temperatures that cross-entropy predicts. All
processes share the folder of compiled programs. The second command tries it on a CPU.
"""

import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any
from unittest import mock

import jax
import numpy as np
from absl import flags
from jax import lax

from calib_jax import losses
from experiments.benchmarks import losses as of_losses
from experiments.benchmarks import metrics, reference, timing, training
from experiments.evaluation import trained
from experiments.map import heads
from experiments.running import building, cli, environment
from experiments.running import training as running

for _name in ("data_dir", "json", "rounds"):
    flags.declare_key_flag(_name)  # defined by `building` and `timing`
_CONFIG = flags.DEFINE_string("of", "cifar10_resnet50", "A file of configs/, without .py.")
_EPOCHS = flags.DEFINE_integer("epochs", 30, "Epochs of a training.", lower_bound=1)
_MINUTES = flags.DEFINE_float("minutes", 8.0, "No training starts that would end later.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds that train at once.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Train this seed only, and time nothing; 0 does both.")

TRAINED = ("cross_entropy", "focal_3", "matched", "bsce_gra", "adafocal")
DROPS = (150 / 350, 250 / 350)  # of the learning rate, as parts of the papers' schedule


def config_of(loss: str, options: dict[str, float], seed: int) -> Any:
    """Return the config of a training, with the papers' schedule made shorter."""
    config = importlib.import_module(f"configs.{_CONFIG.value}").get_config(loss)
    config.loss.options.update(options)
    config.seed, config.num_epochs, config.precision = seed, _EPOCHS.value, "bfloat16"
    if config.schedule.name == "multi_step":
        config.schedule.milestones = tuple(round(of * _EPOCHS.value) for of in DROPS)
    config.metrics, config.evaluate_test = ("error", "nll"), False
    config.run.checkpoint_every_epochs = 0
    return config


def train(config: Any, folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a network; return logits and labels of the validation and the test set."""
    experiment = building.build(config, data_dir=building.DATA_DIR.value)
    folder.mkdir(parents=True)
    (outcome,) = running.fit(experiment, {config.seed: folder}, quiet=True)
    if outcome.failed or outcome.stopped_by:
        raise cli.Failed(outcome.failed or "the training was stopped.")
    logits, labels = {}, {}
    for part in ("validation", "test"):
        source = getattr(experiment.dataset, part)
        found = trained.predictions(experiment, [outcome.state], source)
        logits[part] = np.asarray(found.logits)
        labels[f"{part}_labels"] = np.asarray(found.labels)
    return logits, labels


def trainings(seed: int, end: float, folder: pathlib.Path, write: Any) -> None:
    """Train the losses of a seed while there is time."""
    rows: list[dict[str, Any]] = []
    took = 0.0
    base: Any = None
    for loss in TRAINED:
        began = time.perf_counter()
        if began + took > end:
            return
        name, options = heads.LOSSES[loss]
        if loss == "matched":
            found = losses.matched_focal(base[0]["validation"][0], base[1]["validation_labels"])
            name, options = found.loss, {"gamma": found.gamma}
        logits, labels = train(config_of(name, options, seed), folder / loss)
        took = time.perf_counter() - began
        row = {"loss": loss, "objective": name, "options": options, "seed": seed}
        values = {key: of[0] for key, of in heads.measured(logits, labels).items()}
        row |= values | {"epochs": _EPOCHS.value, "seconds": round(took, 1)}
        if loss == "cross_entropy":
            base = logits, labels
            row["predicted"] = {
                other: heads.predicted(logits["validation"], labels["validation_labels"], other)
                for other in ("focal_3", "bsce_gra")
            }
        rows.append(row)
        write("trainings", rows)
        print(f"seed {seed} {loss}: T {row['temperature']:.2f}, {took:.0f} s", flush=True)


def all_seeds(end: float, out: pathlib.Path) -> None:
    """Train each seed in a process of its own, all at once, with the flags of this command."""
    processes = []
    for seed in range(1, _SEEDS.value + 1):
        minutes = (end - time.perf_counter()) / 60
        own = f"--seed={seed}", f"--minutes={minutes}", f"--json={out.with_suffix(f'.{seed}.json')}"
        command = sys.executable, "-m", "experiments.benchmarks.gpu", *sys.argv[1:], *own
        processes.append(subprocess.Popen(command))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise cli.Failed("a training failed, see above.")


def updates(tiny: bool) -> list[timing.Row]:
    """Time steps of ResNet-8 whose update is selected, and in a branch."""
    size, steps = (4, 1) if tiny else (128, 100)
    ways: dict[str, Any] = {
        "selected": lambda present, updated, old: jax.tree.map(
            lambda new, before: lax.select(present, new, before), updated(), old
        ),
        "in a branch": lambda present, updated, old: lax.cond(present, updated, lambda: old),
    }
    loops = {}
    for name, way in ways.items():
        with mock.patch("calib_jax.train.step._where_present", way):
            loops[name] = training.OurLoop("resnet8", "cross_entropy", size, steps)
            loops[name]()  # compiles
    seconds = timing.interleaved(loops, rounds=timing.ROUNDS.value)
    return timing.compared(seconds, "in a branch", model="resnet8", batch_size=size)


def speed(tiny: bool) -> list[timing.Row]:
    """Time steps in bfloat16 beside PyTorch's loop, where it is installed."""
    name, size, steps = ("resnet20", 4, 1) if tiny else ("resnet50", 128, 50)
    calls: dict[str, Any] = {
        "calib_jax, bfloat16": training.OurLoop(
            name, "cross_entropy", size, steps, dtype="bfloat16"
        ),
        "calib_jax": training.OurLoop(name, "cross_entropy", size, steps),
    }
    if importlib.util.find_spec("torch") is not None:
        calls["PyTorch"] = training.torch_loop(name, size, steps)
    seconds = timing.interleaved(calls, rounds=timing.ROUNDS.value)
    rows = timing.compared(seconds, list(calls)[-1], model=name, batch_size=size)
    return [row | {"images_per_second": 1e3 * size * steps / row["ms"]} for row in rows]


def main() -> None:
    """Time, then train until the time is over."""
    end = time.perf_counter() + 60 * _MINUTES.value
    out = timing.OUT.value
    if not out:
        raise cli.Refused("give --json=FILE for the results.")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share a GPU
    cli.use_compilation_cache()
    content: dict[str, Any] = {"provenance": environment.published()}

    def write(name: str, rows: Any) -> None:
        content[name] = rows
        pathlib.Path(out).write_text(json.dumps(content, indent=1) + "\n")

    if _SEED.value:
        with tempfile.TemporaryDirectory() as folder:
            trainings(_SEED.value, end, pathlib.Path(folder), write)
        return
    building.build(config_of("cross_entropy", {}, 1), data_dir=building.DATA_DIR.value)
    tiny = jax.default_backend() == "cpu"
    shape = (64, 5) if tiny else (8192, 100)
    names, rounds = ["focal", "adafocal", "bsce_gra", "mmce"], timing.ROUNDS.value
    write("updates", updates(tiny))
    write("speed", speed(tiny))
    write("losses", of_losses.measure(shape, "float32", names, rounds))
    write("metrics", metrics.measure_metrics(reference.drawn(*shape), rounds, peers=False))
    all_seeds(end, pathlib.Path(out))


if __name__ == "__main__":
    cli.run(main)
