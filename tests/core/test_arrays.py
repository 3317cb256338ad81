"""Arrays of other libraries go in wherever logits, labels or weights do.

The doubles have the methods of the libraries' arrays, which are tested themselves where they are
installed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import binary, calibrators, inference, losses, metrics, plots, report
from calib_jax.core.arrays import as_array

LOGITS = np.array([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [0.0, 3.0, 1.0], [1.0, 0.0, 2.0]], np.float32)
LABELS = np.array([0, 2, 1, 0])
WEIGHTS = np.array([1.0, 2.0, 0.0, 1.0], np.float32)
CPU, CUDA = 1, 2


class Column:
    """A table or column: only `__array__`, as in pandas."""

    def __init__(self, values):
        self.values = values
        self.shape = np.shape(values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class Tensor:
    """A tensor as PyTorch has it: one that requires gradients can only be detached."""

    def __init__(self, values, needs_gradient=True):
        self.values = np.asarray(values)
        self.needs_gradient = needs_gradient
        self.shape, self.dtype = self.values.shape, f"tensor.{self.values.dtype}"

    def detach(self):
        return Tensor(self.values, needs_gradient=False)

    def __array__(self, dtype=None, copy=None):
        if self.needs_gradient:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return np.array(self.values, dtype)

    def __dlpack__(self, **options):
        if self.needs_gradient:
            raise BufferError("Can't export tensors that require gradient.")
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return CPU, 0


class Half(Tensor):
    """A tensor whose numbers NumPy does not have; JAX has them."""

    def detach(self):
        return self

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack__(self, **options):
        return jnp.asarray(self.values, jnp.bfloat16).__dlpack__(**options)


class Far:
    """An array on an accelerator that JAX here cannot read; `cpu` copies it to the host."""

    def __init__(self, values):
        self.values = values
        self.shape, self.ndim = np.shape(values), np.ndim(values)

    def __dlpack__(self, **options):
        raise BufferError("no such device")

    def __dlpack_device__(self):
        return CUDA, 0

    def cpu(self):
        return Tensor(self.values)


class Exported:
    """An array with nothing but the DLPack protocol."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return CPU, 0


class Negated(Tensor):
    """A tensor of PyTorch with a lazy sign, which its DLPack export leaves out."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that has negative bit set.")

    def detach(self):
        return self

    def __dlpack__(self, **options):
        return (-self.values).__dlpack__(**options)

    def resolve_neg(self):
        return Tensor(self.values, needs_gradient=False)


KINDS = [Column, Tensor, Far]
every_kind = pytest.mark.parametrize("kind", KINDS)


def swapped(array):
    return array.astype(array.dtype.newbyteorder(">"))


def long(array):
    return array.astype(np.longdouble) if array.dtype.kind == "f" else array


def unmasked(array):
    return np.ma.masked_array(array, mask=np.zeros(array.shape, bool))


def objects(array):
    return array.astype(object)


@pytest.mark.parametrize("kind", [*KINDS, Exported, Negated, swapped, long, unmasked, objects])
def test_values_are_those_of_the_arrays(kind):
    arrays = LOGITS, LABELS, WEIGHTS
    foreign = [kind(array) for array in arrays]
    assert metrics.nll(*foreign) == metrics.nll(*arrays)
    np.testing.assert_array_equal(losses.focal(*foreign[:2]), losses.focal(*arrays[:2]))
    stream = metrics.Stream({"nll": metrics.nll})
    stream.update(*foreign)
    np.testing.assert_allclose(stream.compute()["nll"], metrics.nll(*arrays), rtol=1e-6)
    params = calibrators.temperature.fit(*foreign)
    assert params.temperature == calibrators.temperature.fit(*arrays).temperature
    np.testing.assert_array_equal(
        calibrators.temperature.apply(params, foreign[0]),
        calibrators.temperature.apply(params, LOGITS),
    )
    np.testing.assert_array_equal(binary(kind(LOGITS[:, 0])), binary(LOGITS[:, 0]))
    np.testing.assert_array_equal(report.as_logits(foreign[0]), LOGITS)
    joined, _ = metrics.in_and_out(foreign[0], foreign[0])
    np.testing.assert_array_equal(joined, np.concatenate([LOGITS, LOGITS]))


@pytest.mark.parametrize("kind", [Tensor, swapped, objects])
def test_options_and_resamples_are_those_of_the_arrays(kind):
    shares = np.array([0.1, 0.4, 0.5], np.float32)
    for function in (
        inference.interval,  # a compiled function would read swapped bytes
        lambda values: inference.difference((0.0, values), (0.0, values)).samples,
        losses.gamma_for,
        losses.class_weights,
        lambda values: losses.objective("ldam").init(3, values).margins,
        lambda values: plots.roc(values, values).axes[0].lines[0].get_ydata(),
        lambda values: report.average([kind(LOGITS), kind(LOGITS)]),
    ):
        np.testing.assert_array_equal(function(kind(shares)), function(shares))
    assert report.same_examples((LOGITS, LABELS, None), (kind(LOGITS), kind(LABELS), None))


FITTED = calibrators.temperature.fit(LOGITS, LABELS)
KEY = jax.random.key(0)
OF_LOGITS = {
    "metric": lambda z: metrics.nll(z, LABELS),
    "stream": lambda z: metrics.Stream({"nll": metrics.nll}).update(z, LABELS),
    "loss": lambda z: losses.focal(z, LABELS),
    "fit": lambda z: calibrators.temperature.fit(z, LABELS),
    "apply": lambda z: calibrators.temperature.apply(FITTED, z),
    "binary": lambda z: binary(z[:, 0]),
    "report": lambda z: report.score(z, LABELS),
    "comparison": lambda z: report.score(LOGITS, LABELS, compare=z),
    "evidence": lambda z: report.score(LOGITS, LABELS, calibrate="temperature", fit_on=(z, LABELS)),
    "test": lambda z: inference.compare_calibration(LOGITS, z, LABELS),
}
OF_LABELS = {
    "metric": lambda y: metrics.nll(LOGITS, y),
    "loss": lambda y: losses.focal(LOGITS, y),
    "fit": lambda y: calibrators.temperature.fit(LOGITS, y),
    "report": lambda y: report.score(LOGITS, y),
    "test": lambda y: inference.compare_calibration(LOGITS, LOGITS, y),
}
OF_WEIGHTS = {
    "metric": lambda w: metrics.nll(LOGITS, LABELS, w),
    "fit": lambda w: calibrators.temperature.fit(LOGITS, LABELS, w),
    "report": lambda w: report.score(LOGITS, LABELS, weights=w),
    "test": lambda w: inference.compare_calibration(LOGITS, LOGITS, LABELS, w),
}
OTHERS = {
    "p-values": lambda p: inference.holm(p),
    "losses": lambda gamma: losses.focal(LOGITS[:3], LABELS[:3], gamma=gamma[1]),
    "costs": lambda costs: metrics.expected_cost(LOGITS, LABELS, costs=costs),
    "costs of a report": lambda costs: report.score(LOGITS, LABELS, costs=costs),
}
OF_IDS = {
    "bootstrap": lambda ids: inference.bootstrap(
        metrics.nll, LOGITS, LABELS, key=KEY, clusters=ids
    ),
    "clusters of a report": lambda ids: report.score(LOGITS, LABELS, clusters=ids),
    "groups of a report": lambda ids: report.score(LOGITS, LABELS, groups=ids),
    "columns of a report": lambda ids: report.score(LOGITS, LABELS, groups={"a": ids}),
    "groups": lambda ids: inference.group_errors(LOGITS, LABELS, ids, key=KEY),
}


@pytest.mark.parametrize(
    ("array", "door"),
    [
        # By default the first door of each kind.
        pytest.param(array, door, marks=pytest.mark.slow if number else [])
        for array, doors in (
            (LOGITS, OF_LOGITS),
            (LABELS, OF_LABELS),
            (WEIGHTS, OF_WEIGHTS),
            (LABELS, OF_IDS),
            (np.array(["a", "b", "b", "a"]), OF_IDS),
            (np.ones((3, 3)), OTHERS),
        )
        for number, door in enumerate(doors.values())
    ],
)
def test_masked_values_are_refused(array, door):
    masked = np.ma.masked_array(array, mask=np.arange(array.size).reshape(array.shape) == 3)
    with pytest.raises(ValueError, match=r"1 of \d+ values masked: leave these examples"):
        door(masked)


@pytest.mark.parametrize(
    ("values", "doors"),
    [
        (np.zeros((4, 3), [("a", "f4")]), OF_LOGITS),
        (np.full((4, 3), "1.5"), OF_LOGITS),
        (np.full(4, "1"), OF_WEIGHTS),
        (np.zeros(4, [("a", "f4")]), OF_WEIGHTS),
        (np.ones(4, complex), OF_WEIGHTS),
        (np.zeros(4, [("a", "i4")]), OF_LABELS),
    ],
)
def test_what_is_no_number_is_refused_in_a_sentence(values, doors):
    for door in doors.values():
        with pytest.raises(TypeError, match=r"must be (real )?(numbers|floating point)") as caught:
            door(values)
        assert str(caught.value).count("\n") == 0


@pytest.mark.slow
@every_kind
def test_a_report_is_that_of_the_arrays(kind):
    more = {"metrics": ["nll"], "num_resamples": 10, "calibrate": "temperature"}
    rest = {"compare": LOGITS / 2, "fit_on": (LOGITS[::-1] + 1, LABELS[::-1])}
    expected = report.score(LOGITS, LABELS, weights=WEIGHTS, **rest, **more)
    foreign = {"compare": kind(rest["compare"]), "fit_on": tuple(map(kind, rest["fit_on"]))}
    actual = report.score(kind(LOGITS), kind(LABELS), weights=kind(WEIGHTS), **foreign, **more)
    assert actual.rows == expected.rows
    assert actual.changes == expected.changes


def test_numbers_that_numpy_does_not_have_are_read_by_jax():
    assert as_array(Half(LOGITS)).dtype == jnp.bfloat16
    assert metrics.accuracy(Half(LOGITS), LABELS) == metrics.accuracy(LOGITS, LABELS)


def test_labels_beyond_32_bits_are_not_wrapped():
    with pytest.raises(ValueError, match="4294967298 is one"):
        metrics.accuracy(LOGITS, Tensor(LABELS.astype(np.int64) + 2**32))


def test_lists_that_are_no_array_are_refused():
    with pytest.raises(ValueError, match=r"^focal: labels must be one array, got a list that"):
        losses.focal(LOGITS, [[0], [1, 2], [0], [0]])
    with pytest.raises(ValueError, match=r"along their first axis, got the shape \(\)"):
        inference.interval([0.1, 0.2])


def test_an_array_that_nobody_can_copy_is_refused():
    stuck = type("Stuck", (Far,), {"cpu": property(lambda self: self.no_such_method)})
    with pytest.raises(TypeError, match=r"Stuck on the DLPack device \(2, 0\)"):
        metrics.accuracy(stuck(LOGITS), LABELS)


def test_a_column_of_objects_that_are_numbers_is_one_of_numbers():
    assert as_array(Column(np.array([0.5, 1], object))).tolist() == [0.5, 1.0]
    assert as_array(Column(np.array([0.5, 1], object))).dtype == np.float64


@pytest.mark.parametrize("names", [["cat", "dog", "dog", "cat"], [None, 0.5, 1, 2]])
def test_a_column_without_numbers_is_refused(names):
    with pytest.raises(TypeError, match=f"must hold numbers, got {names[0]!r}"):
        metrics.accuracy(LOGITS, Column(np.array(names, object)))


def test_what_jax_knows_is_unchanged():
    for value in (LOGITS, jnp.asarray(LOGITS), [1.0], 2, None, np.float32(1)):
        assert as_array(value) is value
    jax.jit(lambda z: metrics.accuracy(z, LABELS))(LOGITS)  # a tracer


@pytest.mark.slow
def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    logits = torch.tensor(LOGITS, requires_grad=True)
    assert metrics.nll(logits, torch.tensor(LABELS)) == metrics.nll(LOGITS, LABELS)
    assert as_array(logits.to(torch.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.slow
def test_tables_of_pandas():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(LOGITS, columns=["cat", "dog", "owl"])
    for labels in (pandas.Series(LABELS), pandas.Series(LABELS, dtype="Int64")):
        assert metrics.nll(table, labels) == metrics.nll(LOGITS, LABELS)
    with pytest.raises(TypeError, match="must hold numbers, got 'cat'"):
        metrics.nll(table, pandas.Series(["cat", "dog", "owl", "cat"]))


def test_an_accelerator_that_jax_has_keeps_the_array():
    """The array of a GPU stays there; on a CPU it stands for the accelerator."""

    class Shared(Far):
        def __dlpack__(self, **options):
            return self.values.__dlpack__(**options)

        def __dlpack_device__(self):
            return next(calls)

    values = jnp.asarray(LOGITS)
    # The first answer chooses the path, JAX asks again for the device of the memory.
    calls = iter([(CUDA, 0), *[values.__dlpack_device__()] * 3])
    actual = as_array(Shared(values))
    assert isinstance(actual, jax.Array)
    assert actual.unsafe_buffer_pointer() == values.unsafe_buffer_pointer()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (
            lambda z: inference.class_errors(z, LOGITS, LABELS, key=jax.random.key(0)),
            "class_errors",
        ),
        (lambda z: metrics.nll(z, LABELS), "nll"),
        (lambda z: losses.focal(z, LABELS), "focal"),
        (lambda z: calibrators.temperature.fit(z, LABELS), "temperature"),
    ],
)
def test_a_metric_is_no_array(call, name):
    message = f"{name}: logits must be an array, got the Metric ece: give the array in its place."
    with pytest.raises(TypeError, match=f"^{message}$"):
        call(metrics.ece)


@pytest.mark.parametrize(("given", "shown"), [(None, "None"), ({"params": LOGITS}, "the dict")])
def test_nothing_and_variables_are_no_arrays(given, shown):
    with pytest.raises(TypeError, match=f"focal: logits must be an array, got {shown}: "):
        losses.focal(given, LABELS)
