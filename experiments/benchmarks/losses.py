"""Time every loss against optax's cross-entropy, forward and backward pass of the sum.

    python -m experiments.benchmarks.losses
    python -m experiments.benchmarks.losses --shapes=8192x100 --dtypes=float32 --only=focal,bsce_gra

The target of a ratio is 1.3 for weights of the label's probability alone and for gradient weighting
with beta 1 or 2, and 2 for the others. `memory` is the ratio of the bytes that XLA plans.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import flags

from calib_jax import losses
from calib_jax.core import checks
from experiments.benchmarks import timing
from experiments.running import cli

flags.adopt_module_key_flags(timing)  # --json, --rounds, --shapes
DTYPES = ("float64", "float32", "bfloat16", "float16")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Dtypes of the logits.")
_ONLY = flags.DEFINE_list("only", [], "Names of objectives; all by default.")

SHAPES = ("8192x100", "1024x1000")
BASE = "optax cross-entropy"
OF_IMAGES = {"neighbour_margin"}
OF_LABEL = {
    *("cross_entropy", "focal", "inverse_focal", "flsd53", "flsd532", "flsc531", "flsc532"),
    *("adafocal", "recall", "fl_gra", "flsd53_gra", "bsce_gra"),
}


def measure(shape: tuple[int, int], dtype: str, names: list[str], rounds: int) -> list[timing.Row]:
    """Time the losses at one shape and dtype."""
    noise, coin = jax.random.split(jax.random.key(0))
    logits = 2 * jax.random.normal(noise, shape)
    labels = jax.random.categorical(coin, logits)
    logits = logits.astype(dtype)
    of_optax = optax.softmax_cross_entropy_with_integer_labels
    functions: dict[str, Any] = {BASE: (lambda _, z, y: of_optax(z, y), ())}
    for name in names:
        objective = losses.objective(name)
        state = objective.init(shape[1], jnp.ones(shape[1]))
        # The rows are the pixels of one image for losses of images.
        axes = (1, -1, math.gcd(shape[0], 8)) if name in OF_IMAGES else (-1,)
        functions[name] = (functools.partial(_value, objective, axes), state)
    calls, memory = {}, {}
    for name, (function, state) in functions.items():
        total = jax.value_and_grad(lambda z, y, s, of=function: jnp.sum(of(s, z, y)))
        compiled = jax.jit(total).lower(logits, labels, state).compile()
        calls[name] = functools.partial(compiled, logits, labels, state)
        memory[name] = _bytes(compiled)
    spent = timing.interleaved(calls, rounds=rounds)
    rows = timing.compared(spent, BASE, shape="x".join(map(str, shape)), dtype=dtype)
    for row in rows:
        name = row["name"]
        row["target"] = None if name == BASE else 1.3 if name in OF_LABEL else 2.0
        row["memory"] = memory[name] / memory[BASE] if memory[BASE] else None
    return rows


def _value(objective: Any, axes: tuple[int, ...], state: Any, logits: Any, labels: Any) -> Any:
    shaped = logits.reshape(*axes, logits.shape[-1]), labels.reshape(axes)
    return objective.value(state, *shaped, None)


def _bytes(compiled: Any) -> int:
    """Return XLA's plan of temporaries and results; 0 if the backend does not report it."""
    plan = compiled.memory_analysis()
    return plan.temp_size_in_bytes + plan.output_size_in_bytes if plan else 0


def main() -> None:
    """Measure the losses at all shapes and dtypes."""
    for name in _ONLY.value:
        cli.refusing(checks.one_of, "objective", name, list(losses.catalogue()))
    for dtype in _DTYPES.value:
        cli.refusing(checks.one_of, "dtype", dtype, DTYPES)
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise cli.Refused(f"--dtypes={dtype} needs the environment variable JAX_ENABLE_X64=1.")
    names = _ONLY.value or list(losses.catalogue())
    rows: list[timing.Row] = []
    for shape in map(timing.shape_of, timing.SHAPES.value or SHAPES):
        for dtype in _DTYPES.value:
            rows += measure(shape, dtype, names, timing.ROUNDS.value)
    timing.report(rows)


if __name__ == "__main__":
    cli.run(main)
