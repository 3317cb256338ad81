r"""Measure which training repeats bit for bit: the same run twice, and on 1, 2, 4 and 8 devices.

    python -m experiments.benchmarks.determinism --page=determinism.md

Small networks train on the digits for 20 steps in float32: a perceptron with one loss of each way
to make a loss, and other networks with cross-entropy. On a CPU the devices are simulated. The
examples, their order and the initial parameters do not depend on the number of devices.
"""

import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import numpy as np
from ml_collections import ConfigDict

from calib_jax import train
from experiments.benchmarks import tables, training_work
from experiments.running import building

COUNTS = (1, 2, 4, 8)
EPOCHS, EXAMPLES, BATCH = 4, 200, 40
CHANGE, CHANGED = 2e-6, 4  # of the initial parameters, relative to each; number of such runs
LOSSES = (
    *("cross_entropy", "adafocal", "brier", "bsce_gra", "ece_weighted", "flsd53", "mmce"),
    *("recall", "soft_ece", "tempered_focal"),
)
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (64, 64)},
    "resnet8": {"width": 8},
    "vit": {
        **{"image": 8, "patch": 4, "width": 16, "depth": 2, "heads": 2, "head_width": 8},
        **{"mlp_width": 32, "dropout": 0.1},
    },
}


def experiment(network: str, loss: str) -> building.Experiment:
    """Build the training of a network with a loss on few digits."""
    config = importlib.import_module("configs.digits").get_config(loss)
    config.data.options.training_size, config.batch_size = EXAMPLES, BATCH
    config.model.name, config.model.options = network, ConfigDict(NETWORKS[network])
    return building.build(config)


def changed(state: train.TrainState, seed: int) -> train.TrainState:
    """Change every parameter by `CHANGE`, up or down at random."""
    random = np.random.default_rng(seed)

    def change(values: np.ndarray) -> np.ndarray:
        signs = random.choice([-1, 1], size=values.shape)
        return np.asarray(values * (1 + CHANGE * signs), values.dtype)

    return state._replace(params=jax.tree.map(change, state.params))


def trained(
    built: building.Experiment, num_devices: int, starts: Sequence[train.TrainState]
) -> list[list[np.ndarray]]:
    """Train from each start with one compiled program; return the parameters at the end."""
    arrangement = train.Arrangement(train.local_devices(num_devices))
    step = training_work.train_step(built.task, train.AXIS)
    runner = train.feed(built.task.train, arrangement).training(step)
    results = []
    for start in starts:
        states = arrangement.place([start])
        for epoch in range(EPOCHS):
            order = train.shuffled(EXAMPLES, 1, epoch)
            batches = train.in_batches(order, BATCH, multiple=num_devices)
            runner.begin(batches, 0)
            states, _ = runner(states, [0], [batches.num_steps])
            jax.block_until_ready(states)
        leaves = jax.tree.leaves(train.first(states.params))
        results.append([np.asarray(leaf) for leaf in leaves])
    return results


def same_bits(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Check whether all arrays have the same bits."""
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def distance(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Return the largest distance, relative to the largest parameter."""
    largest = max(float(np.max(np.abs(b))) for b in other)
    return max(float(np.max(np.abs(a - b))) for a, b in zip(one, other, strict=True)) / largest


def measure(network: str, loss: str, counts: Sequence[int]) -> tables.Row:
    """Train on each number of devices, and compare with the first number."""
    built = experiment(network, loss)
    runs = {count: trained(built, count, [built.state(), built.state()]) for count in counts}
    first, _ = runs[counts[0]]
    row: tables.Row = {"network": network, "loss": loss}
    for count, (once, again) in runs.items():
        row[f"{count} twice"] = same_bits(once, again)
        row[str(count)] = 0.0 if same_bits(once, first) else distance(once, first)
    starts = [changed(built.state(), seed) for seed in range(CHANGED)]
    row["changed"] = max(distance(each, first) for each in trained(built, counts[0], starts))
    return row


def _twice(row: tables.Row) -> str:
    wrong = [count for count in COUNTS if not row.get(f"{count} twice", True)]
    return f"**differs on {', '.join(map(str, wrong))}**" if wrong else "same bits"


def _distance(key: str) -> tables.Cell:
    def cell(row: tables.Row) -> str:
        if key not in row:
            return ""
        return f"{row[key]:.0e}".replace("e-0", "e-") if row[key] else "same bits"

    return cell


COLUMNS: dict[str, tables.Cell] = {
    "network": tables.text("network"),
    "loss": tables.text("loss"),
    "the run again": _twice,
    **{f"{count} devices": _distance(str(count)) for count in COUNTS[1:]},
    "the start changed": _distance("changed"),
}
NOTE = (
    'Parameters after 20 steps. "The run again" repeats the run on each number of devices. The'
    " other columns compare with one device:\nthe largest distance, relative to the largest"
    " parameter. On another number of devices the gradient is a sum of the same terms\nin another"
    " order, which rounds differently. In float64 the tests allow 1e-9 after 10 steps, for every"
    " loss.\nThe last column is the largest distance of four runs on one device, whose initial"
    " parameters are changed by 2e-6 of each.\nA ReLU whose input is nearly 0 then gets another"
    " sign, which moves the gradient at once. Rounding on other devices rarely does that."
)
SECTIONS = {"devices": tables.Section("One, two, four and eight devices", COLUMNS, NOTE)}


def main(
    losses: Annotated[Sequence[str], "Losses of the perceptron."] = LOSSES,
    networks: Annotated[Sequence[str], "Networks with cross-entropy."] = tuple(NETWORKS)[1:],
) -> tables.Report:
    """Measure the perceptron with every loss, and the other networks."""
    tables.check("networks", networks, NETWORKS)
    jax.config.update("jax_num_cpu_devices", COUNTS[-1])
    counts = [count for count in COUNTS if count <= jax.local_device_count()]
    pairs = [("mlp", loss) for loss in losses] + [(name, LOSSES[0]) for name in networks]
    rows = [{"task": "devices"} | measure(*pair, counts) for pair in pairs]
    return tables.Report("Determinism", rows, SECTIONS)


if __name__ == "__main__":
    tables.run(main)
