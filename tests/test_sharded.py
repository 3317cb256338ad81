"""Arrays sharded over a mesh give the numbers of one device, for every public function.

All members of a kind share one program, because compiling each alone would take minutes.
"""

import contextlib
import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from calib_jax import calibrators, inference, losses, metrics
from tests.losses.members import COUPLED, OF_IMAGES
from tests.selection import some

NUM_ROWS, NUM_CLASSES = 32, 6
COUNTS = np.arange(7, 7 + NUM_CLASSES)
PROGRESS = losses.Progress(steps=7, epochs=2, num_epochs=5)

PLACEMENTS = {  # of logits, and of labels and weights
    "rows": (P("rows"), P("rows")),
    "classes": (P(None, "classes"), P()),
    "both": (P("rows", "classes"), P("rows")),
}
AXES = {"Explicit": AxisType.Explicit, "Auto": AxisType.Auto}


def examples(dtype=np.float32, num_rows=NUM_ROWS):
    random = np.random.default_rng(0)
    logits = (2 * random.standard_normal((num_rows, NUM_CLASSES))).astype(dtype)
    labels = random.integers(NUM_CLASSES, size=num_rows)
    labels = np.where(random.random(num_rows) < 0.5, logits.argmax(-1), labels)
    weights = random.choice([1, 1, 1, 0, 2], size=num_rows).astype(dtype)
    return logits, labels.astype(np.int32), weights


def mesh_of(axes):
    return jax.make_mesh((4, 2), ("rows", "classes"), axis_types=(AXES[axes],) * 2)


def context(mesh, is_set):
    return jax.set_mesh(mesh) if is_set else contextlib.nullcontext()


def placed(mesh, placement, arrays):
    of_logits, of_labels = PLACEMENTS[placement]
    specs = (of_logits, of_labels, of_labels)
    return [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(arrays, specs, strict=True)]


def assert_same(actual, wanted, tolerance=4e-6):
    """Compare trees by name; tolerances are relative to the largest entry of a leaf."""
    actual, wanted = (jax.tree_util.tree_leaves_with_path(tree) for tree in (actual, wanted))
    assert len(wanted) > 0
    for (path, a), (_, b) in zip(actual, wanted, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        size = np.max(np.abs(b), initial=1, where=np.isfinite(b))
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a, b, tolerance, tolerance * size, err_msg=name)


# --------------------------------------------------------------------------------------------
# Members: functions of (logits, labels, weights).


def _as_images(*arrays):
    """Reshape rows to images of four pixels."""
    return [array.reshape(-1, 2, 2, *array.shape[1:]) for array in arrays]


def _of_objective(name):
    objective = losses.objective(name)

    def run(*data):
        logits, labels, weights = _as_images(*data) if name in OF_IMAGES else data
        state = objective.init(NUM_CLASSES, COUNTS)

        def total(logits):
            terms = objective.value(state, logits, labels, weights)
            return jnp.sum(weights * terms), terms

        (_, terms), gradient = jax.value_and_grad(total, has_aux=True)(logits)
        return terms, gradient

    return run


def _of_evidence(name):
    objective = losses.objective(name)

    def run(logits, labels, weights):
        state = objective.init(NUM_CLASSES, COUNTS)
        return objective.update(state, objective.evidence(state, logits, labels, weights), PROGRESS)

    return run


@functools.cache
def uncoupled():
    return {name: _of_objective(name) for name in losses.catalogue() if name not in COUPLED}


def of_each_way():
    """One objective of each way to make one, for numbers: tracing all of them is cheaper."""
    names = ("adafocal", "bsce_gra", "class_adaptive_margin", "dual_focal", "neighbour_margin")
    return {name: _of_objective(name) for name in names}


@functools.cache
def coupled():
    return {name: _of_objective(name) for name in sorted(COUPLED)}


@functools.cache
def evidence():
    names = [name for name in losses.catalogue() if losses.objective(name).clock != "never"]
    return {name: _of_evidence(name) for name in names}


@functools.cache
def of_metrics():
    return {"in one pass": functools.partial(metrics.values_of, metrics.catalogue())}


@functools.cache
def of_statistics():
    def of_metric(metric):
        return lambda *data: metric.value(metric.stat(*data))

    return {name: of_metric(metric) for name, metric in metrics.catalogue().items()}


def together(members):
    return lambda *data: {name: member(*data) for name, member in members.items()}


KINDS = {
    "of each way": of_each_way,
    "uncoupled": uncoupled,
    "coupled": coupled,
    "metrics": of_metrics,
    "evidence": evidence,
    "statistics": of_statistics,
}


@functools.cache
def on_one_device(kind, dtype=np.float32):
    return jax.device_get(jax.jit(together(KINDS[kind]()))(*examples(dtype)))


# --------------------------------------------------------------------------------------------
# Losses and metrics.


@pytest.mark.parametrize("kind", some(KINDS, by_default=1))
def test_rows_of_an_explicit_mesh(kind):
    data = placed(mesh_of("Explicit"), "rows", examples())
    outcomes = jax.jit(together(KINDS[kind]()))(*data)
    assert_same(jax.device_get(outcomes), on_one_device(kind))


@pytest.mark.parametrize("kind", ["uncoupled", "coupled", "evidence", "statistics"])
def test_every_member_can_be_traced(kind):
    """Tracing is enough to find an operation that an Explicit mesh refuses, or strict types.

    Terms and gradients of losses keep the sharding of the rows.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        data = placed(mesh_of("Explicit"), "both", examples())
        traced = jax.eval_shape(together(KINDS[kind]()), *data)
    assert set(traced) == set(KINDS[kind]())
    if kind == "uncoupled":
        for name, arrays in traced.items():
            assert {each.sharding.spec[0] for each in arrays} == {"rows"}, name


@pytest.mark.parametrize("name", ["ece", "classwise_ece"])
def test_rows_of_many_blocks_stay_on_their_devices(name):
    """Otherwise every device holds all logits: 4 GB for 10^6 rows of 1,000 classes."""
    mesh, shape = mesh_of("Auto"), (2**15, 100)
    rows = NamedSharding(mesh, P(("rows", "classes")))
    logits = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=rows)
    labels = jax.ShapeDtypeStruct(shape[:1], jnp.int32, sharding=rows)
    metric = getattr(metrics, name)
    program = jax.jit(lambda z, y: metric(z, y)).lower(logits, labels).compile().as_text()
    assert "f32[4096,100]" in program
    assert "f32[32768,100]" not in program


def test_eager_calls_on_an_explicit_mesh():
    """A NumPy array beside a sharded one takes part, and a `Partial` carries sharded options."""
    logits, labels, weights = examples()
    on_mesh = placed(mesh_of("Explicit"), "both", (logits, labels, weights))
    terms = losses.focal(on_mesh[0], labels)
    assert jax.typeof(terms).sharding.spec[0] == "rows"
    assert_same(terms, losses.focal(logits, labels))
    assert_same(metrics.ece(on_mesh[0], labels, weights), metrics.ece(logits, labels, weights))

    def score(share, p):
        return share * p.rest

    share = jax.device_put(weights, on_mesh[1].sharding)
    uncertainty = jax.tree_util.Partial(score, share)
    actual = losses.weighted_cross_entropy(*on_mesh[:2], uncertainty, weighting="loss")
    wanted = losses.weighted_cross_entropy(
        logits, labels, functools.partial(score, weights), weighting="loss"
    )
    assert_same(actual, wanted)


# --------------------------------------------------------------------------------------------
# Calibrators and inference, which gather the arrays.

KEY = {"key": jax.random.key(0), "num_resamples": 20}


def _fit_and_apply(calibrator):
    def run(*data):
        params = calibrator.fit(*data)
        return params, calibrator.apply(params, data[0])

    return run


CALIBRATORS = {name: _fit_and_apply(each) for name, each in calibrators.catalogue().items()}


def _of_images(*data):
    stream = inference.ImageStream(metrics.ece)
    stream.update(*(part.reshape(4, 8, *part.shape[1:]) for part in data))
    return stream.compute(), stream.estimates(**KEY)


def _of_stream(*data):
    stream = metrics.Stream({"ece": metrics.ece, "aurc": metrics.aurc})
    stream.update(*data)
    stream.update(*data)
    return stream.compute()


ECE = {"ece": metrics.ece, "nll": metrics.nll}
INFERENCE = {
    "Stream": _of_stream,
    "ImageStream": _of_images,
    "best_threshold": lambda z, y, w: inference.best_threshold(z, y, w, abstain_cost=0.3, **KEY),
    "bootstrap": lambda *data: inference.bootstrap(ECE, *data, **KEY),
    "class_errors": lambda *data: inference.class_errors(*data, **KEY),
    "compare_calibration": lambda z, *rest: inference.compare_calibration(z, 2 * z, *rest),
    "compare_ece": lambda z, *rest: inference.compare_ece(z, 2 * z, *rest, **KEY),
    "debiased_squared_error": inference.debiased_squared_error,
    "decision_calibration": inference.decision_calibration,
    "estimates": lambda *data: inference.estimates(ECE, *data, **KEY),
    "estimates of clusters": lambda z, y, w: inference.estimates(ECE, z, y, w, clusters=y, **KEY),
    "flips": lambda z, *rest: inference.flips(z, 2 * z, *rest),
    "group_errors": lambda z, y, w: inference.group_errors(z, y, y, w, **KEY),
    "guaranteed_coverage": lambda *data: inference.guaranteed_coverage(*data, risk=0.5),
    "interval": lambda z, y, w: inference.interval(z),
    "mcnemar": lambda z, *rest: inference.mcnemar(z, 2 * z, *rest),
    "noise_bound": lambda *data: inference.noise_bound(metrics.ece, *data, **KEY),
    "paired_bootstrap": lambda z, *rest: inference.paired_bootstrap(ECE, z, 2 * z, *rest, **KEY),
    **{
        f"calibration_test {name}": functools.partial(
            inference.calibration_test,
            name,
            **({"key": KEY["key"]} if "key" in inspect.signature(test).parameters else {}),
        )
        for name, test in inference.calibration_tests().items()
    },
}


QUICK = {
    "temperature",
    "isotonic",
    "Stream",
    "bootstrap",
    "flips",
    "calibration_test spiegelhalter",
}
assert {*CALIBRATORS, *INFERENCE} >= QUICK


def numbers(value):
    """List the numbers of results of any type, in order."""
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for entry in value for number in numbers(entry)]
    return [] if value is None or isinstance(value, str) else [np.asarray(value)]


@pytest.mark.parametrize("name", some(CALIBRATORS | INFERENCE, by_default=QUICK))
def test_fits_and_inference_gather_the_rows(name):
    function = (CALIBRATORS | INFERENCE)[name]
    wanted = numbers(function(*map(jnp.asarray, examples())))
    assert_same(numbers(function(*placed(mesh_of("Explicit"), "rows", examples()))), wanted)


@pytest.mark.parametrize("name", ["temperature", "isotonic"])
def test_calibrators_inside_jit(name):
    calibrator = calibrators.named(name)
    data = placed(mesh_of("Explicit"), "both", examples())
    params, calibrated = jax.jit(_fit_and_apply(calibrator))(*data)
    assert jax.typeof(calibrated).sharding.spec == P("rows", "classes")
    wanted = _fit_and_apply(calibrator)(*examples())
    assert_same(numbers([params, calibrated]), numbers(wanted))
