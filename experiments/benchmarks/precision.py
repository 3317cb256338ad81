r"""Measure what 32 and 16 bits cost: every loss, its gradient and every metric against float64.

    python -m experiments.benchmarks.precision --page=precision.md
    python -m experiments.benchmarks.precision --parts=losses --only=mmce,adafocal
    python -m experiments.benchmarks.precision --parts=steps --torch_python=OTHER/bin/python

Logits are drawn in float64 and rounded to a dtype. Two errors follow, which the tables separate:

  input        f(rounded logits) against f(logits), both in float64: no program can avoid it
  arithmetic   the library on the rounded logits against float64 on the same rounded logits

Each is the largest distance over all entries, relative to the largest entry. The float64 results
are those of the library on the processor, which the tests compare with NumPy and with the papers'
released code. Loss values are float32 for every dtype, gradients have the dtype of the logits.

The part steps trains 200 steps in float64 beside plain PyTorch (`torch_steps.py`), which runs in
this Python or in --torch_python.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from calib_jax import losses, metrics
from experiments.benchmarks import libraries, tables, torch_steps
from experiments.benchmarks import losses as timed
from experiments.papers import device_check

DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}
ROWS, CLASSES, SIDE = 1024, 10, 32
# Arithmetic in float32 loses this much in sums of 1,024 terms. A gradient in 16 bits is rounded
# once for each part of a loss, of which there are at most two: one unit in the last place.
FLOAT32 = 1e-5
UNIT = {name: float(ml_dtypes.finfo(dtype).eps) for name, dtype in DTYPES.items()}
Results = Mapping[str, Any]  # trees of arrays by name, such as value and gradient


def draw(binary: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits in float64 and labels; about half of the labels are the prediction."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(ROWS, CLASSES)) * random.choice([1.0, 3.0], size=(ROWS, 1))
    labels = random.integers(2 if binary else CLASSES, size=ROWS)
    right = random.random(ROWS) < 0.5
    return logits, labels if binary else np.where(right, logits.argmax(-1), labels)


def errors(function: Callable[[Any, Any], Results], *, binary: bool = False) -> Iterator[Any]:
    """Yield the name of each result with its errors: by dtype, of the input and of arithmetic."""
    logits, labels = draw(binary)

    def exact(z: np.ndarray) -> Results:
        with device_check.float64_on_the_processor():
            return jax.device_get(function(jnp.asarray(z, jnp.float64), jnp.asarray(labels)))

    unrounded = exact(logits)
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in unrounded}
    for dtype, kind in DTYPES.items():
        rounded = logits.astype(kind)
        reference = exact(rounded.astype(np.float64))
        actual = jax.device_get(function(jnp.asarray(rounded), jnp.asarray(labels, jnp.int32)))
        for name in found:
            found[name][dtype] = {
                "input": distance(reference[name], unrounded[name]),
                "arithmetic": distance(actual[name], reference[name]),
            }
    yield from found.items()


def distance(actual: Any, expected: Any) -> float:
    """Return the largest distance of the leaves, each relative to the leaf's largest entry.

    Entries that are NaN or infinite in both are equal; in one of them, the distance is infinite.
    """
    largest = 0.0
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        both = np.isfinite(a) & np.isfinite(b)
        size = np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
        apart = np.where(same, 0.0, np.inf)
        apart[both] = np.abs(a[both] - b[both])
        largest = max(largest, float(np.max(apart, initial=0.0) / (size or 1.0)))
    return largest


def of_losses(only: Collection[str]) -> list[tables.Row]:
    """Measure the value and the gradient of every loss, with a state after one update."""
    rows = []
    for name in losses.catalogue():
        if only and name not in only:
            continue
        objective, state = losses.objective(name), _state(name)
        shape = (1, SIDE, -1) if name in timed.OF_IMAGES else (-1,)

        def total(
            z: Any, y: Any, state: Any, objective: Any = objective, shape: Any = shape
        ) -> Any:
            values = objective.value(state, z.reshape(*shape, CLASSES), y.reshape(shape), None)
            return jnp.sum(values), values

        compiled = jax.jit(jax.grad(total, has_aux=True))

        def compute(z: Any, y: Any, compiled: Any = compiled, state: Any = state) -> Results:
            gradient, values = compiled(z, y, as_wide(state, z))
            return {"value": values, "gradient": gradient}

        for result, found in errors(compute):
            rows.append({"name": name, "result": result, "errors": found})
    return rows


def as_wide(state: Any, logits: Any) -> Any:
    """Convert the numbers of a state to float64 for logits in float64."""
    wide = jnp.promote_types(logits.dtype, jnp.float32)
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, wide if leaf.dtype.kind == "f" else leaf.dtype), state
    )


def _state(name: str) -> Any:
    """Return a float32 state after one update, so that no rounding of a state is measured.

    It has seen other examples: edges of bins at the examples themselves would be ties.
    """
    objective, (logits, labels) = losses.objective(name), draw(seed=1)
    state = objective.init(CLASSES, np.bincount(labels, minlength=CLASSES))
    if objective.clock != "never":
        seen = jnp.asarray(logits, jnp.float32), jnp.asarray(labels)
        evidence = objective.evidence(state, *seen, None)
        state = objective.update(state, evidence, losses.Progress(1, 1, 2))
    return jax.device_get(state)


def of_metrics(only: Collection[str]) -> list[tables.Row]:
    """Measure every metric; for those of out-of-distribution scores labels are 0 and 1."""
    rows = []
    for name in metrics.catalogue():
        if only and name not in only:
            continue
        metric = metrics.named(name)

        def compute(z: Any, y: Any, metric: Any = metric) -> Results:
            return {"value": metric.value(metric.stat(z, y))}

        for result, found in errors(compute, binary=name.startswith("ood_")):
            rows.append({"name": name, "result": result, "errors": found})
    return rows


def limit(row: tables.Row, dtype: str) -> float:
    """Return the largest arithmetic error that the library promises."""
    rounds = UNIT[dtype] if row["result"] == "gradient" else 0.0
    return FLOAT32 + rounds


def missed(row: tables.Row) -> list[str]:
    """List the dtypes whose arithmetic loses more than promised."""
    return [
        dtype
        for dtype, each in row["errors"].items()
        if not each["arithmetic"] <= limit(row, dtype)
    ]


def _cell(dtype: str, kind: str) -> tables.Cell:
    def cell(row: tables.Row) -> str:
        text = f"{row['errors'][dtype][kind]:.0e}".replace("e-0", "e-")
        return f"**{text}**" if kind == "arithmetic" and dtype in missed(row) else text

    return cell


def _power(key: str) -> tables.Cell:
    return lambda row: f"{row[key]:.0e}"


OF_STEPS: dict[str, tables.Cell] = {
    "loss": tables.text("name"),
    **{f"after {n}": _power(str(n)) for n in torch_steps.AFTER},
    "the start changed in the last digit": _power("moved"),
}
COLUMNS: dict[str, tables.Cell] = {
    "": tables.text("name"),
    "of": tables.text("result"),
    **{
        f"{dtype}, {kind}": _cell(dtype, kind)
        for dtype in DTYPES
        for kind in ("input", "arithmetic")
    },
}
MEASURES: dict[str, Callable[..., list[tables.Row]]] = {
    "losses": of_losses,
    "metrics": of_metrics,
    "steps": torch_steps.distances,
}
NOTE = (
    '"Input" is the error that rounding the logits to the dtype causes, in float64. "Arithmetic" is'
    " the error of the library on\nthese rounded logits."
)
SECTIONS = {
    "losses": tables.Section(
        "Losses",
        COLUMNS,
        f"{NOTE} It is bold above {FLOAT32:.0e} for values, which are float32, and above"
        " that and one unit in the last\nplace for gradients, which have the dtype of the"
        " logits: " + ", ".join(f"{unit:.0e} in {dtype}" for dtype, unit in UNIT.items()) + ".",
    ),
    "metrics": tables.Section(
        "Metrics", COLUMNS, f"{NOTE} It is bold above {FLOAT32:.0e}. Metrics are float32."
    ),
    "steps": tables.Section(
        "200 steps in float64 beside PyTorch",
        OF_STEPS,
        "The papers' recipe for each loss, with their sum or mean over the batch, momentum,"
        " weight decay, clipping and dropped\nrates, in our training step and in a plain PyTorch"
        " loop. The largest distance of the parameters, relative to the\nlargest parameter. The"
        " last column compares two trainings of ours, whose starts differ in the last digit, after"
        " 200 steps: so much\ntraining amplifies rounding.",
    ),
}


def main(
    parts: Annotated[Sequence[str], f"Of {', '.join(MEASURES)}."] = tuple(MEASURES),
    only: Annotated[Sequence[str], "Names of losses and metrics; all by default."] = (),
    torch_python: Annotated[str, "A Python with PyTorch; by default this one."] = "",
) -> tables.Report:
    """Measure the parts; without PyTorch the part steps is left out."""
    tables.check("parts", parts, MEASURES)
    tables.check("only", only, {*losses.catalogue(), *metrics.catalogue()})
    has_torch = torch_python or libraries.installed("torch")
    measures = MEASURES | {"steps": functools.partial(torch_steps.distances, python=torch_python)}
    if not has_torch:
        del measures["steps"]
    rows = [
        {"task": part} | row for part in parts if part in measures for row in measures[part](only)
    ]
    setting = {"torch": next((row["torch"] for row in rows if "torch" in row), "not installed")}
    return tables.Report("Precision", rows, SECTIONS, setting=setting)


if __name__ == "__main__":
    tables.run(main)
