"""The parts of the training benchmark, each a list of rows.

A row has its `task` and `name`, the median `seconds` of an epoch over `rounds`, what follows from
them, and often a `ratio` with its middle half, with the `target` that it should keep.
"""

import dataclasses
import json
import pathlib
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from calib_jax import losses, metrics, train
from experiments.benchmarks import programs, timing, torch_loop, torch_worker
from experiments.benchmarks.training_work import Epochs, Work

Row = dict[str, Any]
Seconds = dict[str, np.ndarray]

METRICS = ("error", "nll", "ece", "brier", "mce", "adaptive_ece", "classwise_ece")
TORCH, RELEASED = "PyTorch, plain loop", "PyTorch, released loop"
COMPILED, STEPWISE = "one compiled loop", "step by step"


@dataclasses.dataclass(frozen=True)
class Session:
    """What all parts share.

    Attributes:
      rounds: how often each is timed.
      peer: PyTorch in its process; None without.
      peak_tflops: of the device, by dtype; those that are not known are missing.
    """

    rounds: int
    peer: torch_worker.Peer | None
    peak_tflops: dict[str, float]

    def timed(self, task: str, calls: dict[str, Callable[[], Any]]) -> Seconds:
        """Time epochs in turns."""
        return timing.interleaved(calls, rounds=self.rounds, label=task)


def row(task: str, name: str, seconds: np.ndarray, work: Work) -> Row:
    """Say what follows from the seconds of an epoch."""
    middle = float(np.median(seconds))
    return {
        "task": task,
        "name": name,
        "model": work.model,
        "batch_size": work.batch_size,
        "steps": work.steps,
        "rounds": len(seconds),
        "seconds": middle,
        "step_seconds": middle / work.steps,
        "images_per_second": work.images / middle,
    }


def compared(task: str, work: Work, spent: Seconds, calls: dict[str, Any]) -> list[Row]:
    """Make a row of each, with the compile time and the memory of what is ours."""
    rows = []
    for name, seconds in spent.items():
        made = row(task, name, seconds, work)
        if isinstance(call := calls[name], Epochs):
            made["compile_seconds"] = call.compile_seconds
            made["first_call_seconds"] = call.first_call_seconds
            made["memory"] = call.memory
        rows.append(made)
    return rows


def _peer_epoch(
    session: Session, name: str, work: Work, said: dict[str, Any], **options: Any
) -> Callable[[], Any]:
    peer = session.peer
    assert peer
    peer.build(
        name,
        network=work.model,
        batch_size=work.batch_size,
        steps=work.steps,
        stored=work.stored,
        **options,
    )

    def run() -> None:
        said[name] = peer.epoch(name)

    return run


# --------------------------------------------------------------------------------------------


def epoch(session: Session, work: Work) -> list[Row]:
    """Time an epoch as one compiled loop, its steps one by one, and PyTorch's."""
    calls: dict[str, Any] = {COMPILED: Epochs(work), STEPWISE: Epochs(work, feed=train.Streamed)}
    if session.peer and work.model in torch_loop.NETWORKS:
        calls[TORCH] = _peer_epoch(session, TORCH, work, {})
    spent = session.timed("epoch", calls)
    rows = compared("epoch", work, spent, calls)
    base = TORCH if TORCH in spent else COMPILED
    operations = programs.training_flops(work.module(None), work.shape)
    for made in rows:
        made["gflops"] = 1e-9 * operations * made["images_per_second"]
        made["ratio"] = timing.ratio(spent[base], spent[made["name"]])
        made["against"] = base
        if base == TORCH and made["name"] != TORCH and jax.default_backend() == "cpu":
            made["target"] = {"at_least": 0.5}
    return rows


def objective(session: Session, work: Work) -> list[Row]:
    """Time steps of objectives with a state beside cross-entropy."""
    names = ("cross_entropy", "adafocal", "recall")
    calls: dict[str, Any] = {name: Epochs(work, losses.objective(name)) for name in names}
    spent = session.timed("objective", calls)
    rows = compared("objective", work, spent, calls)
    alone = timing.interleaved(
        {name: _loss_alone(name, work.batch_size) for name in names}, rounds=session.rounds
    )
    for made in rows:
        made["loss_seconds"] = float(np.median(alone[made["name"]]))
        made["ratio"] = timing.ratio(spent[made["name"]], spent[names[0]])
        made["against"] = names[0]
        if made["name"] != names[0]:
            made["target"] = {"at_most": 1.02}
    return rows


def _loss_alone(name: str, batch_size: int) -> Callable[[], Any]:
    """Make a call that computes a loss and its gradient from logits, without a network."""
    loss = losses.objective(name)
    state = loss.init(10)
    draw = np.random.default_rng(0)
    logits = jax.device_put(draw.normal(size=(batch_size, 10)).astype(np.float32))
    labels = jax.device_put(draw.integers(10, size=batch_size))
    weights = jax.device_put(np.ones(batch_size, np.float32))

    def summed(logits: Any) -> Any:
        return loss.value(state, logits, labels, weights).sum()

    gradient = jax.jit(jax.value_and_grad(summed))
    return lambda: gradient(logits)


def fit(session: Session, work: Work) -> list[Row]:
    """Time epochs of `train.fit` in turns with the compiled programs that they run."""
    loss = losses.objective("adafocal")
    alone = Epochs(work, loss)
    validation = work.some(max(work.batch_size, work.images // 10, 100))  # 15 bins of them
    chosen = {name: metrics.named(name) for name in METRICS}
    forward = train.linen(work.module(train.AXIS))
    step = train.make_eval_step(forward, chosen, objective=loss, axis_name=train.AXIS)
    evaluate = train.Resident(validation, alone.arrangement).evaluation(step, work.batch_size)
    turns: list[tuple[float, float, float, float]] = []

    def turn(_: int) -> float:
        """Train and evaluate by the programs alone.

        The log asks for the learning rate once an epoch, while the device is idle: so that
        `fit` and its programs can be timed in turns, although `fit` returns only at its end.
        """
        ended = time.perf_counter()
        alone()
        trained = time.perf_counter()
        evaluate(alone.states[0], [True])
        evaluated = time.perf_counter()
        turns.append((ended, trained - ended, evaluated - trained, time.perf_counter()))
        return 0.1

    task = train.Task(
        forward=forward,
        objective=loss,
        tx=work.tx,
        metrics=chosen,
        train=work.source,
        evaluated={"validation": validation},
        num_classes=10,
        learning_rate=turn,
    )
    best = {"nll": "min", "error": "min"}
    plan = train.Plan(num_epochs=session.rounds + 2, batch_size=work.batch_size, best=best)
    with tempfile.TemporaryDirectory() as folder:
        train.fit(folder, work.state(loss, 0), task, plan, quiet=True)
        log = pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()
    # Epoch k lasted from where the turn after epoch k - 1 ended to where its own began. The first
    # compiled its steps, and the second what follows an evaluation.
    ended, training, evaluation, again = (np.array(numbers) for numbers in zip(*turns, strict=True))
    whole = (ended[1:] - again[:-1])[1:]
    training, evaluation = training[2:], evaluation[2:]
    logged = [json.loads(line) for line in log][2:]
    rows = [
        row("fit", "training, compiled", training, work),
        row("fit", "evaluation, compiled", evaluation, work),
        row("fit", "an epoch of train.fit", whole, work),
    ]
    rows[1]["images_per_second"] = len(validation) / rows[1]["seconds"]
    del rows[1]["step_seconds"]
    low, middle, high = np.percentile(1 - (training + evaluation) / whole, [25, 50, 75])
    timed = ("seconds", "evaluation_seconds")
    inside = {name: np.array([line[name] for line in logged]) for name in timed}
    rows[2] |= {
        "ratio": {"median": float(middle), "low": float(low), "high": float(high)},
        "against": "its whole",
        "target": {"at_most": 0.03},
        # Where it goes, in seconds: more than the programs alone while steps run, more while it
        # evaluates, and all else.
        "outside": {
            "training": float(np.median(inside["seconds"] - training)),
            "evaluation": float(np.median(inside["evaluation_seconds"] - evaluation)),
            "between": float(np.median(whole - sum(inside.values()))),
        },
        "call": _of_a_call(alone, steps=min(work.steps, 6)),
    }
    return rows


def _of_a_call(epochs: Epochs, *, steps: int) -> Row:
    """Measure what a call of the compiled loop costs beside its steps."""
    calls = {
        "one": lambda: epochs.in_pieces(steps, steps),
        "all": lambda: epochs.in_pieces(steps, 1),
    }
    spent = timing.interleaved(calls, rounds=3, label="calls")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    calls["one"]()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {
        "seconds": float(np.median(spent["all"] - spent["one"])) / (steps - 1),
        "page_faults": faults,
        "memory": epochs.memory,
        "piece_seconds": train.loop.PIECE_SECONDS,
    }


def seeds(session: Session, works: Sequence[Work], number: int, epochs: int) -> list[Row]:
    """Time several seeds in one program beside runs one after another.

    Args:
      session: how.
      works: the networks.
      number: of seeds.
      epochs: of a run, when compilation is counted in.
    """
    return [made for work in works for made in _seeds(session, work, number, epochs)]


def _seeds(session: Session, work: Work, number: int, epochs: int) -> list[Row]:
    apart = f"{number} runs"
    ways = ["map", "vmap"] + ["devices"] * (jax.device_count() > 1)
    calls: dict[str, Any] = {apart: Epochs(work, groups=[(seed,) for seed in range(number)])}
    for over in ways:
        calls[over] = Epochs(work, groups=[tuple(range(number))], over=over)
    spent = session.timed(f"seeds of {work.model}", calls)
    rows = compared("seeds", work, spent, calls)
    for made in rows:
        call = calls[made["name"]]
        made["images_per_second"] *= number
        made["ratio"] = timing.ratio(spent[apart], spent[made["name"]])
        made["against"] = apart
        # Runs of their own compile each their own program.
        made["programs"] = number if made["name"] == apart else 1
        made["epochs"] = epochs
        made["whole_seconds"] = made["programs"] * call.compile_seconds + epochs * made["seconds"]
        made["whole_ratio"] = rows[0]["whole_seconds"] / made["whole_seconds"]
    on_cpu = jax.default_backend() == "cpu"
    # A CPU is filled by one run: it is asked of the way that is meant for it.
    best = "map" if on_cpu else min(ways, key=lambda way: float(np.median(spent[way])))
    for made in rows:
        if made["name"] == best:
            made["target"] = {"at_least": 1.0 if on_cpu else 1.5}
    return rows


def gpu(session: Session, work: Work) -> list[Row]:
    """Time a large network in two dtypes beside PyTorch's plain loop and the released one."""
    plain = dataclasses.replace(work, stored=True)
    ours = {
        "ours, float32": plain,
        "ours, bfloat16": dataclasses.replace(plain, dtype="bfloat16"),
        "ours, float32, crops and flips": dataclasses.replace(plain, augmented=True),
    }
    calls: dict[str, Any] = {name: Epochs(its) for name, its in ours.items()}
    said: dict[str, Any] = {}
    if session.peer and work.model in torch_loop.NETWORKS:
        forms: dict[str, dict[str, Any]] = {
            f"{TORCH}, float32": {"tf32": True},
            f"{TORCH}, float32, channels last": {"tf32": True, "channels_last": True},
            f"{TORCH}, bfloat16": {"dtype": "bfloat16"},
            f"{TORCH}, bfloat16, channels last": {"dtype": "bfloat16", "channels_last": True},
            RELEASED: {"form": "released", "tf32": True},
        }
        for name, options in forms.items():
            calls[name] = _peer_epoch(session, name, plain, said, **options)
    spent = session.timed("gpu", calls)
    rows = compared("gpu", work, spent, calls)
    operations = programs.training_flops(work.module(None), work.shape)
    base = RELEASED if RELEASED in spent else next(iter(calls))
    for made in rows:
        name = made["name"]
        made["dtype"] = "bfloat16" if "bfloat16" in name else "float32"
        made["flops_per_image"] = operations
        if made["dtype"] in session.peak_tflops:
            peak = 1e12 * session.peak_tflops[made["dtype"]]
            made["utilisation"] = operations * made["images_per_second"] / peak
        if name in said:
            made["memory"] = said[name]["memory"]
        made["ratio"] = timing.ratio(spent[base], spent[name])
        made["against"] = base
        if base == RELEASED and "crops" in name and jax.default_backend() == "gpu":
            made["target"] = {"at_least": 3.0}
    return rows
