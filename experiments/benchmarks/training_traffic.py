"""Count what crosses devices in a training step, from the program that is compiled for 8.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu \
        python -m experiments.benchmarks.training_traffic resnet20 128 cross_entropy mmce

Nothing runs. The devices are faked on a CPU, which must be said before JAX starts: so the training
benchmark calls this as a process of its own, by `counted`. A line of JSON for each loss.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from calib_jax import losses, train
from experiments.benchmarks import programs
from experiments.benchmarks.training_work import Work

Row = dict[str, Any]


def counted(model: str, batch_size: int, names: Sequence[str], devices: int) -> Iterator[Row]:
    """Start the process and pass on its lines."""
    faked = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-m", __name__, model, str(batch_size), *names]
    with subprocess.Popen(
        command, env=os.environ | faked, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise RuntimeError(f"the process that counts bytes ended with code {process.returncode}.")


def measure(work: Work, loss: str) -> Row:
    """Compile the steps for all devices, and count."""
    objective = losses.objective(loss)
    arrangement = train.Arrangement(jax.devices())
    runner = train.Resident(work.source, arrangement).training(work.step(objective, train.AXIS))
    order = train.shuffled(work.images, 0, 0)
    runner.begin(train.in_batches(order, work.batch_size, multiple=arrangement.sharing), 0)
    state = work.state(objective, 0)
    compiled = runner.compiled(arrangement.place([state]))
    purposes: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    for found in programs.collectives(compiled):
        purposes[purpose(found.source)] += found.payload * found.times
        operations[purpose(found.source)] += found.times
    return {
        "name": f"{work.model}, {loss}",
        "devices": arrangement.sharing,
        "bytes": programs.collective_bytes(compiled).per_step,
        "gradient_bytes": train.memory.size(state.params),
        "by_purpose": purposes,
        "operations": operations,
    }


def purpose(source: str) -> str:
    """Tell what is exchanged, from where in the step it comes from.

    >>> purpose("jit(_fun)/while/body/transpose(jvp(ResNet))/stage1_block1/norm2/psum")
    'batch norm'
    """
    if "jvp(" not in source:  # behind what is differentiated
        return "gradient"
    return "batch norm" if "norm" in source else "loss"


def main() -> None:
    """Print a line for each loss."""
    model, batch_size, *names = sys.argv[1:]
    for loss in names:
        print(json.dumps(measure(Work(model, int(batch_size), 2), loss)), flush=True)


if __name__ == "__main__":
    main()
