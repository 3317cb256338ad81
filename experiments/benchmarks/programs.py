"""Analyze a program without running it: its memory, operations and exchanged bytes."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from calib_jax import train
from calib_jax.train.devices.memory import plan_of

COLLECTIVES = {
    *("psum", "psum2", "psum_invariant", "pmax", "pmin", "ppermute", "reduce_scatter"),
    *("all_gather", "all_gather_invariant", "all_to_all"),
}


def analysis(compiled: Any) -> dict[str, Any]:
    """Return XLA's plan of a program, with None for values that the backend does not report.

    Returns:
      "memory", the bytes of temporaries and of new results, and "flops", which counts the body of a
      loop once: a loop over training steps has the count of one step.
    """
    plan = plan_of(compiled)
    if plan is None:
        return {"memory": None, "flops": None}
    size = plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return {"memory": size, "flops": (compiled.cost_analysis() or {}).get("flops")}


def exchanged(step: Any, *arguments: Any, devices: int) -> Counter[str]:
    """Count the bytes that one device passes to collectives in a step, by part of the step.

    A collective counts the larger of its inputs and outputs on one device. The count is of the
    step as written, before XLA merges or removes anything.

    Args:
      step: a function that names the axis `train.AXIS`. It is traced, not run.
      arguments: arrays or their shapes, as one device sees them.
      devices: the size of the axis.

    Returns:
      Bytes by part: "gradient" after the differentiated function, and "batch norm" and "loss"
      inside it.
    """
    traced = jax.make_jaxpr(step, axis_env=[(train.AXIS, devices)])(*arguments)
    bytes_by_pass: Counter[str] = Counter()
    for scope, size in _collectives(traced.jaxpr, ""):
        inside = "batch norm" if "norm" in scope else "loss"
        bytes_by_pass[inside if "jvp(" in scope else "gradient"] += size
    return bytes_by_pass


def _collectives(jaxpr: Any, around: str) -> Iterator[tuple[str, int]]:
    """Yield the name scope and the bytes of every collective."""
    for equation in jaxpr.eqns:
        scope = f"{around}/{equation.source_info.name_stack}"
        if equation.primitive.name in COLLECTIVES:
            sizes = (
                sum(value.aval.size * value.aval.dtype.itemsize for value in values)
                for values in (equation.invars, equation.outvars)
            )
            yield scope, max(sizes)
        trips = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in jaxprs_in_params(equation.params):
            for name, size in _collectives(inner, scope):
                if equation.primitive.name == "while":
                    raise ValueError(
                        f"A loop of unknown length exchanges data in {name}, so its bytes cannot be"
                        " counted.\nCount the body of the loop, or use lax.scan."
                    )
                yield name, trips * size
