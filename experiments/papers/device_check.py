r"""Check losses and metrics on this device before a training: laws, known values, and float64.

    python -m experiments.papers.device_check

Accelerators multiply float32 matrices with fewer bits unless a program asks for all of them, as
runs with the precision float32 do. So their matrix product is compared with one in float64. Each
loss of the runs, its gradient, and each metric are compared with the same computation in
float64 on the processor, which the tests compare with the recorded values of the papers' code. A
few values are derived by hand, and a few laws must hold exactly. Last, the gradient of a small
network in bfloat16 is compared with that in float32: runs use bfloat16 only where both agree.
"""

import contextlib
import functools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from calib_jax import losses, metrics, models
from calib_jax.train.folder import files
from experiments.running import cli, provenance

LOSSES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("cross_entropy", "bsce_gra", "flsd53", "adafocal")},
    "focal": {"gamma": 3.0},
    **{name: {} for name in ("brier", "mmce", "dual_focal", "label_smoothing")},
}
METRICS = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "mce")
ROWS, CLASSES = 64, 10
# Distances from float64, relative to 1 plus the size of the value.
EXACT, CLOSE, SUMMED = 1e-6, 1e-5, 1e-5
LEAST_COSINE = 0.99


class Check(NamedTuple):
    """One comparison.

    Attributes:
      name: what is compared.
      deviation: the largest distance.
      limit: the largest distance that passes.
    """

    name: str
    deviation: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the distance is small enough; NaN is not."""
        return self.deviation <= self.limit

    def text(self) -> str:
        """Format the comparison as one line."""
        state = "agrees" if self.passed else "DIFFERS"
        return f"{self.name}: {state}, {self.deviation:.1e} (at most {self.limit:.0e})"


def is_accelerator() -> bool:
    """Check whether programs run on anything but the processor."""
    return jax.default_backend() != "cpu"


def checks() -> Iterator[Check]:
    """Yield all comparisons, the quick ones first."""
    logits, labels = _batch()
    yield from _by_hand()
    yield from _laws(logits, labels)
    for name, options in LOSSES.items():
        compute = functools.partial(_value_and_gradient, name, options)
        actual = compute(jnp.asarray(logits, jnp.float32), jnp.asarray(labels))
        yield Check(f"gradient of {name} sums to 0", _distance(actual[1].sum(-1), 0.0), SUMMED)
        yield Check(f"loss {name} in float64", _from_float64(compute, actual), CLOSE)
    for name in METRICS:
        metric = metrics.named(name)
        actual = metric(jnp.asarray(logits, jnp.float32), jnp.asarray(labels))
        yield Check(f"metric {name} in float64", _from_float64(metric, actual), CLOSE)
    yield Check("matrix product in float32", matrix_error("float32"), CLOSE)
    yield _bfloat16(logits, labels)


def matrix_error(precision: str) -> float:
    """Return the relative error of a matrix product of networks with a config's precision."""
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 256, 256)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    with jax.default_matmul_precision(precision):
        product = np.asarray(jnp.asarray(a) @ jnp.asarray(b), np.float64)
    return float(np.max(np.abs(product - exact)) / np.max(np.abs(exact)))


def _batch() -> tuple[np.ndarray, np.ndarray]:
    """Draw logits of all sizes, with rows that are certain and right, and certain and wrong."""
    random = np.random.default_rng(0)
    logits = 2 * random.normal(size=(ROWS, CLASSES))
    labels = random.integers(CLASSES, size=ROWS)
    for row, label in ((0, labels[0]), (1, (labels[1] + 1) % CLASSES)):
        logits[row] = 40 * (np.arange(CLASSES) == label)
    return logits, labels


def _value_and_gradient(name: str, options: dict[str, Any], logits: Any, labels: Any) -> Any:
    objective = losses.objective(name, **options)
    state = objective.init(CLASSES, jnp.ones(CLASSES))

    def total(z: Any) -> Any:
        values = objective.value(state, z, labels, None)
        return jnp.sum(values), values

    gradient, values = jax.jit(jax.grad(total, has_aux=True))(logits)
    return values, gradient


def _from_float64(function: Any, actual: Any) -> float:
    """Return the distance of a float32 result from the same function in float64."""
    logits, labels = _batch()
    with float64_on_the_processor():
        wide = jnp.asarray(logits.astype(np.float32).astype(np.float64))
        expected = function(wide, jnp.asarray(labels))
        expected = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), expected)
    return _distance(actual, expected)


@contextlib.contextmanager
def float64_on_the_processor() -> Iterator[None]:
    """Compute in float64 on the processor, whatever the default device."""
    try:
        processor = jax.devices("cpu")[0]
    except RuntimeError as error:
        raise ValueError(
            "JAX_PLATFORMS hides the processor, which computes the references: unset it, or add"
            " ',cpu' to it."
        ) from error
    with jax.enable_x64(True), jax.default_device(processor):
        yield


def _distance(actual: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    distances = [np.max(np.abs(np.asarray(a, np.float64) - b) / (1 + np.abs(b))) for a, b in pairs]
    return float(np.max(distances))


def _by_hand() -> Iterator[Check]:
    """Compare with values that follow from the probabilities .7, .2 and .1."""
    logits, label = jnp.log(jnp.array([[0.7, 0.2, 0.1]])), jnp.array([0])
    entropy = -np.log(0.7)
    expected = {
        "cross_entropy": entropy,
        "focal": 0.3**3 * entropy,
        "brier": 0.3**2 + 0.2**2 + 0.1**2,
    }
    for name, value in expected.items():
        objective = losses.objective(name, **LOSSES[name])
        actual = objective.value(objective.init(3, jnp.ones(3)), logits, label, None)
        yield Check(f"loss {name} by hand", _distance(actual, np.array([value])), EXACT)
    # Two of three predictions with a confidence of .7 are right.
    three = jnp.repeat(logits, 3, axis=0)
    gap = metrics.ece(three, jnp.array([0, 0, 1]))
    yield Check("metric ece by hand", _distance(gap, np.array(0.7 - 2 / 3)), EXACT)


def _laws(logits: np.ndarray, labels: np.ndarray) -> Iterator[Check]:
    z, y = jnp.asarray(logits, jnp.float32), jnp.asarray(labels)
    values = _value_and_gradient("focal", {"gamma": 0.0}, z, y)
    expected = _value_and_gradient("cross_entropy", {}, z, y)
    yield Check("focal with gamma 0 is cross_entropy", _distance(values, expected), EXACT)
    weights = jnp.where(jnp.arange(ROWS) < ROWS // 2, 1.0, 0.0)
    for name in METRICS:
        metric = metrics.named(name)
        half = metric(z[: ROWS // 2], y[: ROWS // 2])
        yield Check(f"{name} of rows of weight 0", _distance(metric(z, y, weights), half), SUMMED)


def _bfloat16(logits: np.ndarray, labels: np.ndarray) -> Check:
    """Compare the gradients of a small network in bfloat16 and in float32 by their angle."""
    images = np.random.default_rng(1).normal(size=(ROWS, 32, 32, 3)).astype(np.float32)
    gradients = []
    for dtype in ("float32", "bfloat16"):
        network = models.resnet8(num_classes=CLASSES, width=8, dtype=dtype)
        variables = network.init(jax.random.key(0), images[:2], train=False)

        def total(params: Any, network: Any = network, variables: Any = variables) -> Any:
            given = {**variables, "params": params}
            outputs, _ = network.apply(given, images, train=True, mutable=["batch_stats"])
            return jnp.mean(losses.cross_entropy(outputs, labels))

        leaves = jax.tree.leaves(jax.jit(jax.grad(total))(variables["params"]))
        gradients.append(np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.float64))
    a, b = gradients
    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
    name = "gradient of a network in bfloat16 and float32: 1 - cosine"
    return Check(name, float(1 - cosine), 1 - LEAST_COSINE)


def main(out: str | None = None) -> int:
    """Print all comparisons, and fail if one does not pass."""
    cli.use_compilation_cache()  # the next session starts in seconds
    kind = "" if is_accelerator() else ": this is a CPU, and no accelerator"
    print(f"device: {provenance.describe()['device']}{kind}", flush=True)
    done: list[Check] = []
    remaining = checks()
    while check := cli.refusing(next, remaining, None):
        done.append(check)
        print(check.text(), flush=True)
    error = matrix_error("tensorfloat32")
    print(f"matrix product in tensorfloat32: relative error {error:.1e}")
    if out:
        _write(done, error, pathlib.Path(out))
    failed = [check.name for check in done if not check.passed]
    if failed:
        raise cli.Failed(
            f"{len(failed)} of {len(done)} comparisons differ on this device: {', '.join(failed)}."
        )
    print(f"all {len(done)} comparisons agree")
    return 0


def _write(done: Sequence[Check], error: float, path: pathlib.Path) -> None:
    """Write the comparisons and the device as JSON."""
    record = {
        "accelerator": is_accelerator(),
        "checks": [check._asdict() | {"passed": check.passed} for check in done],
        "tensorfloat32_error": error,
        "provenance": provenance.published(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    # Defined here, so that tests can import this file.
    file = flags.DEFINE_string("out", None, "File of the results, as JSON.")
    cli.run(lambda: main(file.value))
