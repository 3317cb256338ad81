"""The cost of BSCE-GRA (Lin et al. 2025) beside cross-entropy: loss alone, and a training step."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses, models
from experiments.benchmarks import programs, timing
from experiments.papers.entry import Entry
from experiments.papers.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values
from experiments.papers.values import Value

ROUNDS = 31
SHAPES = ((8192, 100), (1024, 1000))
BASE = "CE"
LOSSES: dict[str, Callable[..., jax.Array]] = {
    BASE: losses.cross_entropy,
    "BSCE-GRA": losses.generalized_brier,
}


def _compiled(
    of: Callable[..., jax.Array], *arguments: Any
) -> tuple[Callable[[], Any], dict[str, Any]]:
    program = jax.jit(jax.value_and_grad(of)).lower(*arguments).compile()
    return functools.partial(program, *arguments), programs.analysis(program)


def _compared(
    name: str, of: dict[str, Any], arguments: tuple[Any, ...], rounds: int
) -> dict[str, Value]:
    """Time the programs by the processor time of this process, so that others do not matter."""
    built = {loss: _compiled(function, *arguments) for loss, function in of.items()}
    calls = {loss: call for loss, (call, _) in built.items()}
    spent = timing.interleaved(calls, rounds=rounds, clock=time.process_time)
    ratios = np.log(spent["BSCE-GRA"] / spent[BASE])
    # The median of n ratios has the standard error 1.25 sd / sqrt(n); the sd is from quartiles.
    low, middle, high = np.exp(np.percentile(ratios, [25, 50, 75]))
    deviation = 1.2533 * (high - low) / 1.349 / np.sqrt(rounds)
    memory = [built[loss][1]["memory"] for loss in ("BSCE-GRA", BASE)]
    return {
        f"time over CE's, {name}": Value(
            float(middle), float(deviation), rounds - 1, note=f"median of {rounds} rounds"
        ),
        f"memory over CE's, {name}": Value(memory[0] / memory[1], note="XLA's plan"),
    }


def costs() -> dict[str, Value]:
    """Time forward and backward passes of both losses alone, and in a step of ResNet-8."""
    values: dict[str, Value] = {}
    network = models.resnet8(num_classes=10)
    images = jax.random.normal(jax.random.key(0), (128, 32, 32, 3))
    labels = jax.random.randint(jax.random.key(1), (128,), 0, 10)
    variables = network.init(jax.random.key(2), images[:2], train=False)

    def step(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def total(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            logits, _ = network.apply(
                {**variables, "params": params}, x, train=True, mutable=["batch_stats"]
            )
            return jnp.sum(loss(logits, y))

        return total

    of_step = {name: step(loss) for name, loss in LOSSES.items()}
    arguments = (variables["params"], images, labels)
    values |= _compared("step of ResNet-8 at batch 128", of_step, arguments, ROUNDS)
    for rows, classes in SHAPES:
        logits = jax.random.normal(jax.random.key(3), (rows, classes))
        labels = jax.random.randint(jax.random.key(4), (rows,), 0, classes)
        alone = {name: lambda z, y, loss=loss: jnp.sum(loss(z, y)) for name, loss in LOSSES.items()}
        values |= _compared(f"loss alone at [{rows}, {classes}]", alone, (logits, labels), ROUNDS)
    return values


STEP = "time over CE's, step of ResNet-8 at batch 128"


def _free(values: Values) -> Judgement:
    value = values[STEP]
    state = HOLDS if value.high <= 1.02 else FAILS if value.low > 1.1 else UNDECIDED
    return Judgement(state)


FREE = Rule(
    "holds if the 90 % interval of the training step's ratio ends at most at 1.02; does not hold if"
    " it begins above 1.10; undecided otherwise",
    _free,
    (STEP,),
)
ENTRY = Entry(
    claims={"bsce-gra-no-extra-cost": FREE},
    statistic={"bsce-gra-no-extra-cost": costs},
    minutes=5,
    note="Processor time of the process, in interleaved rounds; forward and backward pass.",
)
