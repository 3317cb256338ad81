"""The laws: what is promised of every metric, run over every one that the catalogue finds.

That values are those of the formulas is proven against references; here stands what must hold
whatever the formula. What needs a compilation is compiled once, for all metrics together.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from calib_jax import metrics
from calib_jax.core.statistics import Joint, Rows
from calib_jax.metrics import contract, stream
from tests.options import assert_recorded
from tests.selection import some
from tests.test_doctests import docstrings_of

from . import assert_same, value_of

CATALOGUE = dict(metrics.catalogue())
# One of a kind: a mean, bins of equal width and mass, classes, an order, and a curve.
QUICK = {"nll", "ece", "adaptive_ece", "classwise_ece", "aurc", "reliability"}
assert set(CATALOGUE) >= QUICK
some_metrics = pytest.mark.parametrize("name", some(CATALOGUE, QUICK))

NUM_CLASSES = 4
WRONG_LABELS = (255, -1, NUM_CLASSES)

# A point for each row: with more rows the same points, some of them repeated.
CURVES = {"ood_roc_curve"}
# Not a mean: what is not there is counted as 0 and not as NaN.
COUNTS = {"confusion_counts"}
# Fields that say where and how much was measured, and do so where there is no value.
PLACES = {"weight", "lower", "upper", "confidence", "threshold"}


def sample(num_rows=60, seed=0):
    """Return logits and labels 0 and 1, which also serve where they say where a row comes from.

    Among the rows are ties, confidences on edges of bins, and probabilities of exactly 0 and 1.
    """
    random = np.random.default_rng(seed)
    logits = random.integers(-3, 4, (num_rows, NUM_CLASSES)).astype(np.float32)
    logits[0] = [200, 0, 0, 0]
    logits[1] = [-200, 0, 0, -200]
    logits[2:5] = [0, 0, -200, -200]
    # Often right, so that some bins are overconfident and some are not.
    labels = np.where(random.random(num_rows) < 0.7, logits[:, :2].argmax(axis=1), 0)
    labels[1] = 0
    return logits, labels


@functools.partial(jax.jit, static_argnums=0)
def stat_of(name, *data):
    return CATALOGUE[name].stat(*data)


def fields(value):
    """List the arrays of a value with the path to each."""
    return [
        (jax.tree_util.keystr(path).strip("."), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
    ]


def assert_same_value(name, actual, wanted, **tolerance):
    """Compare values; of a curve with other rows, the points."""
    if name not in CURVES:
        assert_same(actual, wanted, **tolerance)
        return
    points = [
        np.nan_to_num(np.stack([leaf for _, leaf in fields(value)], axis=1), posinf=1e3)
        for value in (actual, wanted)
    ]
    apart = np.abs(points[0][:, None] - points[1][None]).max(axis=-1)
    assert max(apart.min(axis=0).max(), apart.min(axis=1).max()) < 1e-5


@functools.cache
def usual_fields(name):
    return dict(fields(value_of(CATALOGUE[name], *sample())))


def assert_nan(name, value):
    """Check that no number is given that could be taken for the metric's."""
    # A class or a bin that is empty has no value anyway: more of them must have none.
    usual = usual_fields(name)
    single = all(leaf.ndim == 0 for leaf in usual.values())
    for field, leaf in fields(value):
        if single:
            assert np.isnan(leaf), field
        elif field not in PLACES:
            assert np.isnan(leaf).sum() > np.isnan(usual[field]).sum(), (field, leaf)


@jax.jit
def stats_of_all(logits, labels, weights):
    return metrics.stats_of(CATALOGUE, logits, labels, weights)


@jax.jit
def values_of_all(stats):
    return metrics.values_of_stats(CATALOGUE, stats)


values_of_all_metrics = jax.jit(functools.partial(metrics.values_of, CATALOGUE))


def of_16_rows(*data_sets):
    """Compute all metrics of data sets of 16 rows, in the program that several tests share."""
    return [jax.device_get(values_of_all_metrics(*data)) for data in data_sets]


def test_merged_parts_are_the_whole():
    """Whatever the order of the rows, the order of the parts and their grouping."""
    logits, labels = sample()
    weights = np.where(np.arange(60) < 20, 0, 1.5).astype(np.float32)
    whole = values_of_all(stats_of_all(logits, labels, weights))
    order = np.concatenate([np.arange(20), 20 + np.random.default_rng(1).permutation(40)])
    nothing, *others = [
        jax.device_get(stats_of_all(logits[rows], labels[rows], weights[rows]))
        for rows in np.split(order, 3)
    ]
    for stats in (nothing + (others[0] + others[1]), (others[1] + nothing) + others[0]):
        merged = values_of_all(stats)
        for name in CATALOGUE:
            assert_same_value(name, merged[name], whole[name])


def test_weight_k_is_k_copies_and_weight_0_absence():
    """Whatever label or logits there are where the weight is 0; with fewer rows than bins."""
    logits, labels = sample(8)
    copies = np.array([1, 2, 3, 0, 2, 1, 2, 1])
    repeated = np.repeat(logits, copies, 0), np.repeat(labels, copies)
    absent = np.flatnonzero(copies == 0)
    logits[absent] = np.nan
    labels[absent] = np.resize(WRONG_LABELS, len(absent))
    weighted = logits, labels, copies.astype(np.float32)
    names = QUICK | CURVES  # the property tests have copies of random rows for every metric
    quick = jax.jit(lambda *data: {name: value_of(CATALOGUE[name], *data) for name in names})
    actual, wanted = quick(*weighted), quick(*repeated)
    for name in names:
        assert_same_value(name, actual[name], wanted[name])


@some_metrics
def test_streamed_is_whole(name, monkeypatch):
    """Above the limit, rows whose scores share a fine cell take the means of the cell."""
    monkeypatch.setattr("warnings.warn", lambda *args, **options: None)  # `notes` has it, too
    logits, labels = sample()
    weights = np.where(np.arange(60) < 20, 0, 1.5).astype(np.float32)
    whole = stat_of(name, logits, labels, weights)
    ranks = isinstance(whole, Rows) and "score" in whole.columns
    for limit in (60, 30):
        total = metrics.Stream({name: CATALOGUE[name]}, row_limit=limit)
        for rows in (slice(0, 20), slice(20, 40), slice(40, 60)):
            part = stat_of(name, logits[rows], labels[rows], weights[rows])
            if limit == 30 and rows.stop == 40 and isinstance(whole, Rows) and not ranks:
                with pytest.raises(ValueError, match="every example is needed"):
                    total.update_stats(Joint({name: part}), num_rows=20)
                return
            total.update_stats(Joint({name: part}), num_rows=20)
        assert len(total.notes) == (ranks and limit == 30)
        wanted = stream._merged_by_cell(jax.device_get(whole)) if ranks and limit == 30 else whole
        assert_same_value(name, total.compute()[name], CATALOGUE[name].value(wanted))


WRONG_WEIGHTS = ([-1.0], [np.nan], [np.inf], 20 * [1e38], 20 * [1e29])


@some_metrics
def test_what_cannot_be_measured_is_nan(name):
    logits, labels = sample(20)
    ones = np.ones(20, np.float32)
    for rows in (20, 0):
        without = value_of(CATALOGUE[name], logits[:rows], labels[:rows], 0 * ones[:rows])
        if name in COUNTS:
            assert not np.any(without)
        else:
            assert_nan(name, without)
    for wrong in WRONG_WEIGHTS:
        weights = np.concatenate([wrong, ones[len(wrong) :]]).astype(np.float32)
        assert_nan(name, value_of(CATALOGUE[name], logits, labels, weights))
    for wrong in WRONG_LABELS:
        broken = np.where(np.arange(20) == 7, wrong, labels)
        assert_nan(name, value_of(CATALOGUE[name], logits, broken, ones))
    for wrong in ([0, 0, 0, np.nan], [0, 0, 0, np.inf], [-np.inf] * 4):
        broken = logits.copy()
        broken[7] = wrong
        assert_nan(name, value_of(CATALOGUE[name], broken, labels, ones))


@some_metrics
def test_leading_axes_are_rows_and_half_precision_is_read_and_not_kept(name):
    logits, labels = sample()
    data = logits, labels, np.tile(np.float32([0.5, 1, 2]), 20)
    stacked = [part.reshape(2, 3, 10, *part.shape[1:]) for part in data]
    actual = value_of(CATALOGUE[name], jnp.asarray(stacked[0], "bfloat16"), *stacked[1:])
    assert {leaf.dtype for leaf in jax.tree.leaves(actual)} == {jnp.dtype("float32")}
    # Whole numbers are exact, so that nothing is rounded before the metric.
    assert_same_value(name, actual, value_of(CATALOGUE[name], *data))


@pytest.mark.slow
def test_all_at_once_compiled_is_each_by_itself(monkeypatch):
    """The shared pass: equal terms have one statistic, and the last block of rows is shorter."""
    monkeypatch.setattr(contract, "_block_rows", lambda rows, classes: 16)
    logits, labels = sample()
    weights = np.tile([0.5, 1.0, 0.0], 20).astype(np.float32)
    actual = metrics.values_of(CATALOGUE, logits, labels, weights)
    assert actual.keys() == CATALOGUE.keys()
    for name, value in actual.items():
        assert_same_value(name, value, CATALOGUE[name](logits, labels, weights))


def shifted_and_rounded(logits, shift):
    """Return logits with a shift, and without it as they are after the rounding: both exact."""
    shifted = (logits + logits.dtype.type(shift)).astype(logits.dtype)
    return shifted, shifted - logits.dtype.type(shift)


def test_a_shift_of_the_logits_changes_nothing():
    """Beyond the rounding that the logits themselves have with it."""
    random = np.random.default_rng(0)
    logits = (3 * random.standard_normal((16, NUM_CLASSES))).astype(np.float32)
    labels, weights = random.integers(0, 2, 16), np.ones(16, np.float32)
    pairs = [shifted_and_rounded(logits, shift) for shift in (1e2, -1e2, 1e5, -1e5)]
    values = of_16_rows(*((z, labels, weights) for pair in pairs for z in pair))
    for shifted, rounded in zip(values[::2], values[1::2], strict=True):
        for name, value in shifted.items():
            assert_same(value, rounded[name], rtol=1e-6, atol=1e-7)


# Of hits or ranks alone: small changes of the logits change nothing.
CONSTANT_IN_PIECES = {
    *("accuracy", "error", "top_k", "mean_recall", "mean_precision", "mean_iou", "auroc"),
    *("frequency_weighted_iou", "average_precision", "aurc", "augrc", "excess_aurc"),
    *("risk_at_coverage", "coverage_at_risk", "selective_accuracy", "expected_cost"),
    *("ood_auroc", "ood_aupr", "ood_fpr95", "confidence_auroc"),
}


@pytest.mark.slow
def test_gradients_are_those_of_the_values():
    """Forward and backward; 0 only where the value is constant in pieces."""
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        logits = jnp.asarray(2 * random.standard_normal((60, 2)))
        labels, direction = jnp.arange(60) % 3 % 2, jnp.asarray(random.standard_normal((60, 2)))
        values = {name: metrics.named(name)(logits, labels) for name in CATALOGUE}
        scalars = {
            name: CATALOGUE[name]
            for name, value in values.items()
            if isinstance(value, jax.Array) and value.ndim == 0
        }

        @jax.jit
        def values_at(step):
            return metrics.values_of(scalars, logits + step * direction, labels)

        slopes = jax.jit(lambda step: jax.jvp(values_at, (step,), (1.0,))[1])(0.0)
        up, down = values_at(1e-6), values_at(-1e-6)
        numeric = {name: (up[name] - down[name]) / 2e-6 for name in scalars}
        for name in scalars:
            np.testing.assert_allclose(slopes[name], numeric[name], rtol=1e-4, atol=1e-5)
        constant = {name for name in scalars if slopes[name] == 0}
        assert constant - {"underconfidence"} == CONSTANT_IN_PIECES & set(scalars)
        for name in ("smooth_ece", "refinement_brier", "calibration_nll", "ece"):
            back = jax.grad(lambda z: CATALOGUE[name](z, labels))(logits)  # noqa: B023
            np.testing.assert_allclose(jnp.sum(back * direction), slopes[name], rtol=1e-6)


def impossible_classes(true_class_too):
    """Return 16 rows in which some classes have the logit -inf, one row with all but one."""
    logits, labels = sample(16, seed=1)
    logits[5:12, 2] = -np.inf
    logits[7, 3] = -np.inf
    logits[12, 1:], labels[12] = -np.inf, 0
    logits[13, 1 - labels[13]] = -np.inf
    if true_class_too:
        logits[14, labels[14]] = -np.inf
    return logits, labels, np.ones(16, np.float32)


def test_a_logit_of_minus_infinity_is_a_class_of_probability_zero():
    """As the logit -1e30, whose probability is 0."""
    cases = [impossible_classes(True), impossible_classes(False)]
    finite = [(np.maximum(logits, -1e30), *rest) for logits, *rest in cases]
    actual_true, actual, expected_true, expected = of_16_rows(*cases, *finite)
    # Where the true class is impossible its loss is infinite, and not 1e30.
    assert actual_true.pop("nll") == np.inf
    assert actual_true.pop("refinement_nll") == np.inf
    assert np.isnan(actual_true.pop("calibration_nll"))
    for name in ("refinement_brier", "calibration_brier"):  # it does not change the temperature
        assert np.isfinite(actual_true.pop(name))
    wrong = actual_true["by_correctness"].wrong
    assert wrong.nll == np.inf
    expected_wrong = expected_true["by_correctness"].wrong._replace(nll=np.inf)
    expected_true["by_correctness"] = expected_true["by_correctness"]._replace(wrong=expected_wrong)
    for values, references in ((actual_true, expected_true), (actual, expected)):
        for name, value in values.items():
            assert_same(value, references[name], rtol=1e-6, atol=1e-7)


def sharded(function):
    """Compile a function of rows over eight devices, with the default check of `shard_map`."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("batch",))
    shards, replicated = P("batch"), P()
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=shards, out_specs=replicated))


@pytest.mark.slow
def test_devices_agree_with_one():
    """Weights fall unevenly on the devices, one of which has nothing."""
    logits, labels = sample(64)
    weights = np.tile([0.5, 1.0, 0.0, 2.0], 16).astype(np.float32)
    weights[:8] = 0

    def reduced(*shard):
        return metrics.stats_of(CATALOGUE, *shard).all_reduce("batch")

    data = (logits, labels, weights)
    shards = [part.reshape(8, 8, *part.shape[1:]) for part in data]
    # Values are the same of statistics on the host.
    mapped = jax.device_get(jax.block_until_ready(jax.pmap(reduced, axis_name="batch")(*shards)))
    stats = jax.device_get(sharded(reduced)(*data))
    for device in (0, 7):
        assert_same(jax.tree.map(lambda leaf: leaf[device], mapped), stats)  # noqa: B023
    for name, value in metrics.values_of_stats(CATALOGUE, stats).items():
        assert_same_value(name, value, value_of(CATALOGUE[name], *data))


@pytest.mark.parametrize(("num_classes", "weighted"), [(NUM_CLASSES, False), (100, True)])
def test_values_are_replicated_by_the_check_of_shard_map(num_classes, weighted, monkeypatch):
    """Tracing is enough: it fails where a value differs between devices, or a loop's carry does."""
    monkeypatch.setattr(contract, "_block_rows", lambda rows, classes: 3)
    data = (np.zeros((64, num_classes), np.float32), np.zeros(64, np.int32), np.ones(64))

    def values(*shard):
        stats = metrics.stats_of(CATALOGUE, *shard).all_reduce("batch")
        return metrics.values_of_stats(CATALOGUE, stats)

    sharded(values).trace(*data[: 2 + weighted])


def test_defaults_are_the_recorded_ones():
    assert_recorded("metrics")


test_docstring = docstrings_of("metrics")
