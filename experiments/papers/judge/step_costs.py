"""The cost of a loss beside cross-entropy, by the processor time and memory of gradients."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.benchmarks import programs, timing
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value

BASE = "CE"


def free(name: str) -> Rule:
    """Holds if a ratio of times is at most 1.02; does not hold if it is above 1.10."""

    def judge(values: Values) -> Judgement:
        value = values[name]
        p_holds, p_fails = value.p_below(1.02), value.p_above(1.1)
        state = HOLDS if value.high <= 1.02 else FAILS if value.low > 1.1 else UNDECIDED
        return Judgement(state, min(p_holds, p_fails))

    words = (
        "holds if the 90 % interval of the training step's ratio ends at most at 1.02; does not"
        " hold if it begins above 1.10; undecided otherwise"
    )
    return Rule(words, judge, (name,))


def _compiled(
    of: Callable[..., jax.Array], *arguments: Any
) -> tuple[Callable[[], Any], dict[str, Any]]:
    program = jax.jit(jax.value_and_grad(of)).lower(*arguments).compile()
    return functools.partial(program, *arguments), programs.analysis(program)


def compared(
    name: str, of: dict[str, Any], arguments: tuple[Any, ...], rounds: int
) -> dict[str, Value]:
    """Time the programs by the processor time of this process, so that others do not matter.

    Args:
      name: the name of the measurement.
      of: scalar functions of `arguments` to differentiate, CE and one other loss.
      arguments: what both take.
      rounds: how often each is timed.

    Returns:
      The ratios of time and memory, of the other loss over CE.
    """
    (other,) = set(of) - {BASE}
    built = {loss: _compiled(function, *arguments) for loss, function in of.items()}
    calls = {loss: call for loss, (call, _) in built.items()}
    spent = timing.interleaved(calls, rounds=rounds, clock=time.process_time)
    ratios = np.log(spent[other] / spent[BASE])
    # The median of n ratios has the standard error 1.25 sd / sqrt(n); the sd is from quartiles.
    low, middle, high = np.exp(np.percentile(ratios, [25, 50, 75]))
    deviation = 1.2533 * (high - low) / 1.349 / np.sqrt(rounds)
    memory = [built[loss][1]["memory"] for loss in (other, BASE)]
    return {
        f"time over CE's, {name}": Value(
            float(middle), float(deviation), rounds - 1, note=f"median of {rounds} rounds"
        ),
        f"memory over CE's, {name}": Value(memory[0] / memory[1], note="XLA's plan"),
    }
