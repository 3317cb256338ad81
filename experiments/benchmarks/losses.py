"""Time every loss against optax's cross-entropy.

    python -m experiments.benchmarks.losses
    python -m experiments.benchmarks.losses --shapes=8192x100 --dtypes=float32 --only=focal,bsce_gra
    python -m experiments.benchmarks.losses --out=losses.json

Ratios are to `optax.softmax_cross_entropy_with_integer_labels`: of the time of the forward and
backward pass of the sum, and of the memory that XLA plans for it.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from calib_jax import losses
from experiments.benchmarks import programs, reference, tables, timing

DTYPES = ("float32", "bfloat16")
BASE = "optax cross-entropy"
MEMORY = 1.2  # The memory ratio should be at most this.

_BOTH = ({"weighting": "loss"}, {"weighting": "gradient"})
_RUNNER_UP = tuple({"runner_up": which} for which in ("below", "wrong", "second"))
_NORMS = tuple({"beta": beta} for beta in (1.0, 1.5, 2.0))
# Losses whose weight depends on the probability of the label alone, and their options.
OF_LABEL: dict[str, tuple[dict[str, Any], ...]] = {
    **dict.fromkeys(("focal", "inverse_focal", "flsd53", "flsd532", "adafocal"), _BOTH),
    **dict.fromkeys(("cross_entropy", "recall", "flsc531", "flsc532"), ({},)),
    **dict.fromkeys(("fl_gra", "flsd53_gra"), ({},)),
}
OTHERS: dict[str, tuple[dict[str, Any], ...]] = {
    **{"bsce": _NORMS, "bsce_gra": _NORMS, "dual_focal": _RUNNER_UP, "dfl_gra": _RUNNER_UP}
}
OF_IMAGES = {"neighbour_margin"}


class Variant(NamedTuple):
    """An objective, its options, and the upper bound on its ratio."""

    objective: str
    options: dict[str, Any]
    at_most: float


def variants() -> dict[str, Variant]:
    """Return every objective of the catalogue, by the name of its row."""
    by_label = {}
    for name in [*OF_LABEL, *losses.catalogue()]:
        for options in OF_LABEL.get(name) or OTHERS.get(name, ({},)):
            cheap = name in OF_LABEL or (name == "bsce_gra" and options["beta"] != 1.5)
            label = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
            by_label[label] = Variant(name, options, 1.3 if cheap else 2.0)
    return by_label


def measure(
    sample: reference.Sample, dtype: str, chosen: dict[str, Variant], rounds: int
) -> list[tables.Row]:
    """Time the variants in one dtype."""
    logits, labels = sample.logits.astype(dtype), sample.labels
    of_optax = optax.softmax_cross_entropy_with_integer_labels
    functions: dict[str, Any] = {BASE: lambda _, z, y: of_optax(z, y)}
    states: dict[str, Any] = {BASE: ()}
    for label, variant in chosen.items():
        objective = losses.objective(variant.objective, **variant.options)
        state = objective.init(logits.shape[-1], jnp.ones(logits.shape[-1]))
        # The rows are the pixels of one image for losses of images.
        axes = (1, -1, 8) if variant.objective in OF_IMAGES else (-1,)
        functions[label] = lambda s, z, y, of=objective, axes=axes: of.value(
            s, z.reshape(*axes, z.shape[-1]), y.reshape(axes), None
        )
        states[label] = state  # an argument, as in training: XLA knows no number of it
    programs_of, memory = {}, {}
    for label, function in functions.items():
        total = jax.value_and_grad(lambda z, y, s, of=function: jnp.sum(of(s, z, y)))
        arguments = (logits, labels, states[label])
        compiled = jax.jit(total).lower(*arguments).compile()
        programs_of[label] = functools.partial(compiled, *arguments)
        memory[label] = programs.analysis(compiled)["memory"]
    spent = timing.interleaved(programs_of, rounds=rounds, label=dtype)
    targets = {label: {"at_most": variant.at_most} for label, variant in chosen.items()}
    rows = timing.compared(spent, BASE, targets=targets)
    for row in rows:
        row["memory_bytes"] = memory[row["name"]]
        row["memory_ratio"] = memory[row["name"]] / memory[BASE] if memory[BASE] else None
    return rows


def _memory(row: tables.Row) -> str:
    missed = f" {tables.MISSED}" if (row["memory_ratio"] or 0) > MEMORY else ""
    return tables.number("memory_ratio", ".2f")(row) + missed


COLUMNS = tables.SPEED | {f"memory ratio (at most {MEMORY})": _memory}
SECTIONS = {
    dtype: tables.Section(f"Forward and backward pass in {dtype},", COLUMNS) for dtype in DTYPES
}


def main(
    shapes: tables.Shapes = ("8192x100", "1024x1000", "256x10"),
    dtypes: Annotated[Sequence[str], f"Of {', '.join(DTYPES)}."] = DTYPES,
    only: Annotated[Sequence[str], "Names of objectives to run; all by default."] = (),
    rounds: tables.Rounds = 31,
) -> tables.Report:
    """Measure every loss at every shape and dtype."""
    tables.check("only", only, losses.catalogue())
    chosen = {label: row for label, row in variants().items() if not only or row.objective in only}
    measures = {dtype: functools.partial(measure, dtype=dtype) for dtype in DTYPES}
    results = tables.measured(measures, shapes, dtypes, chosen=chosen, rounds=rounds)
    return tables.Report("Losses", results, SECTIONS, ("task", "shape"))


if __name__ == "__main__":
    tables.run(main)
