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

from calib_jax import inference, metrics
from calib_jax.core.statistics import Joint, Rows
from calib_jax.inference.resamples import prepared_terms
from calib_jax.metrics import stream
from calib_jax.metrics.contract import metric as contract
from calib_jax.metrics.contract import predictions
from calib_jax.metrics.contract.predictions import Predictions
from tests.selection import some, some_of

from . import reference
from .laws import assert_same, value_of

CATALOGUE = dict(metrics.catalogue())
every_metric = pytest.mark.parametrize("name", CATALOGUE)
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

# Another value for an option that is no number; other options are derived from their defaults.
OTHER_VALUES = {
    "edges": "left",
    "binning": "released",
    "classes": "released",
    "score": "energy",
    "positive": "in",
    "kind": "marginal",
    "estimator": "sample",
    # Decisions with other costs, and a cost at which some examples are not decided.
    "costs": ((0, 1), (2, 0), (1, 1), (3, 3)),
    "abstain_cost": 0.3,
}


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


def stat_of(name, *data):
    return CATALOGUE[name].stat(*(jnp.asarray(part) for part in data))


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


@every_metric
def test_merged_parts_are_the_whole(name):
    """Whatever the order of the rows, the order of the parts and their grouping."""
    logits, labels = sample()
    weights = np.where(np.arange(60) < 20, 0, 1.5).astype(np.float32)
    whole = value_of(CATALOGUE[name], logits, labels, weights)
    order = np.concatenate([np.arange(20), 20 + np.random.default_rng(1).permutation(40)])
    nothing, *others = [
        stat_of(name, logits[rows], labels[rows], weights[rows]) for rows in np.split(order, 3)
    ]
    for stat in (nothing + (others[0] + others[1]), (others[1] + nothing) + others[0]):
        assert_same_value(name, CATALOGUE[name].value(stat), whole)


@every_metric
def test_weight_k_is_k_copies_and_weight_0_absence(name):
    """Whatever label or logits there are where the weight is 0; with fewer rows than bins."""
    logits, labels = sample(8)
    copies = np.array([1, 2, 3, 0, 2, 1, 2, 1])
    repeated = value_of(CATALOGUE[name], np.repeat(logits, copies, 0), np.repeat(labels, copies))
    absent = np.flatnonzero(copies == 0)
    logits[absent] = np.nan
    labels[absent] = np.resize(WRONG_LABELS, len(absent))
    weighted = value_of(CATALOGUE[name], logits, labels, copies.astype(np.float32))
    assert_same_value(name, weighted, repeated)


# Above the row limit of a stream: every pair of rows, and one ranking for each class.
KEEP_ALL_ROWS = {"auroc", "average_precision", "kde_calibration_error"}


@some_metrics
def test_streamed_is_whole(name, monkeypatch):
    """Above the limit, that of the rows with the mean of all whose scores share a fine cell."""
    monkeypatch.setattr("warnings.warn", lambda *args, **options: None)  # `notes` has it, too
    logits, labels = sample()
    weights = np.where(np.arange(60) < 20, 0, 1.5).astype(np.float32)
    whole = value_of(CATALOGUE[name], logits, labels, weights)
    parts = [
        stat_of(name, *(x[i : i + 20] for x in (logits, labels, weights))) for i in (0, 20, 40)
    ]
    condensed = CATALOGUE[name].value(in_cells(parts[0] + parts[1] + parts[2]))
    for limit, wanted in ((60, whole), (30, condensed)):
        total = metrics.Stream({name: CATALOGUE[name]}, row_limit=limit)
        for number, stat in enumerate(parts):
            if limit == 30 and number == 1 and name in KEEP_ALL_ROWS:
                with pytest.raises(ValueError, match="every example is needed"):
                    total.update_stats(Joint({name: stat}), num_rows=20)
                return
            total.update_stats(Joint({name: stat}), num_rows=20)
        assert total.num_rows == 60
        assert_same_value(name, total.compute()[name], wanted)


def in_cells(stat):
    """Replace the rows of a score by one for each fine cell: its weight and its means."""
    if not isinstance(stat, Rows) or "score" not in stat.columns:
        return stat
    columns = {key: np.asarray(column, np.float64) for key, column in stat.columns.items()}
    weight = columns.pop("weight")
    cell = np.where(weight > 0, stream.fine_cell(np.asarray(stat["score"])), -1)
    filled = [cell == one for one in np.unique(cell[cell >= 0])]
    rows = {
        key: [np.average(column[i], weights=weight[i]) for i in filled]
        for key, column in columns.items()
    }
    rows["weight"] = [weight[i].sum() for i in filled]
    return Rows({key: np.array(column, np.float32) for key, column in rows.items()})


@some_metrics
def test_a_stream_has_fixed_memory(name, monkeypatch):
    """Above the limit every further batch is added to what is there, or raises an error."""
    monkeypatch.setattr("warnings.warn", lambda *args, **options: None)
    logits, labels = sample(20)
    joint = Joint({name: stat_of(name, logits, labels, np.ones(20, np.float32))})
    total = metrics.Stream({name: CATALOGUE[name]}, row_limit=15)
    if name in KEEP_ALL_ROWS:
        with pytest.raises(ValueError, match="20 examples exceed row_limit=15, and every example"):
            total.update_stats(joint, num_rows=20)
        return
    sizes = []
    for _ in range(4):
        total.update_stats(joint, num_rows=20)
        sizes.append(sum(len(part["weight"]) for rows in total._rows.values() for part in rows))
    assert max(sizes) == min(sizes)  # the fourth batch has the scores of the first


@functools.cache
def compiled_for_each():
    """All metrics of 40 data sets of 20 rows each: one compilation for several laws."""
    return jax.jit(jax.vmap(lambda *data: metrics.values_of(CATALOGUE, *data)))


@pytest.mark.slow
def test_few_rows_with_weights_are_their_copies():
    """With 1 to 20 rows that count: 20 copies of them, and the rows with weights among absent."""
    random = np.random.default_rng(3)
    data = []
    for num_rows in range(1, 21):
        logits, labels = sample(20, seed=num_rows)
        chosen = random.permutation(20)[:num_rows]  # also the order of the rows is another one
        weights = np.zeros(20, np.float32)
        weights[chosen] = 1 + np.bincount(
            random.integers(0, num_rows, 20 - num_rows), None, num_rows
        )
        copies = np.repeat(np.arange(20), weights.astype(int))
        data.append((logits[copies], labels[copies], np.ones(20, np.float32)))
        logits[weights == 0], labels[weights == 0] = np.nan, 255
        data.append((logits, labels, weights))
    values = jax.device_get(compiled_for_each()(*map(np.stack, zip(*data, strict=True))))
    for name, value in values.items():
        for i in range(0, 40, 2):
            copies, weighted = (jax.tree.map(lambda leaf, i=i: leaf[i], value) for i in (i, i + 1))
            assert_same_value(name, weighted, copies)
    for name in ("adaptive_ece", "adaptive_mce", "ece", "aurc"):
        assert np.isfinite(values[name]).all(), name


@some_metrics
def test_leading_axes_are_rows(name):
    logits, labels = sample()
    weights = np.tile([0.5, 1.0, 2.0], 20).astype(np.float32)
    stacked = [part.reshape(2, 3, 10, *part.shape[1:]) for part in (logits, labels, weights)]
    stacked = value_of(CATALOGUE[name], *stacked)
    assert_same_value(name, stacked, value_of(CATALOGUE[name], logits, labels, weights))


WRONG_WEIGHTS = {
    "negative": [-1.0],
    "NaN": [np.nan],
    "infinite": [np.inf],
    "too large": 20 * [1e38],
    "too large together": 20 * [1e29],
}


def wrong_weights(kind):
    weights = np.ones(20, np.float32)
    weights[: len(WRONG_WEIGHTS[kind])] = WRONG_WEIGHTS[kind]
    return weights


@pytest.mark.slow
def test_within_jit_a_wrong_weight_makes_every_metric_nan():
    for values in of_20_rows(*((*sample(20), wrong_weights(kind)) for kind in WRONG_WEIGHTS)):
        for name, value in values.items():
            assert_nan(name, value)


@some_metrics
def test_a_statistic_with_a_wrong_weight_has_no_value(name):
    for kind in WRONG_WEIGHTS:
        assert_nan(name, value_of(CATALOGUE[name], *sample(20), wrong_weights(kind)))


@some_metrics
def test_what_cannot_be_measured_is_nan(name):
    logits, labels = sample()
    ones = np.ones(60, np.float32)
    without = value_of(CATALOGUE[name], logits, labels, 0 * ones)
    if name in COUNTS:
        assert not np.any(without)
    else:
        assert_nan(name, without)
    for wrong in WRONG_LABELS:
        broken = labels.copy()
        broken[7] = wrong
        assert_nan(name, value_of(CATALOGUE[name], logits, broken, ones))
    for wrong in (np.nan, np.inf):
        broken = logits.copy()
        broken[7, 3] = wrong
        assert_nan(name, value_of(CATALOGUE[name], broken, labels, ones))
    broken[7] = -np.inf  # no class is possible
    assert_nan(name, value_of(CATALOGUE[name], broken, labels, ones))


@some_metrics
def test_half_precision_is_read_and_not_kept(name):
    logits, labels = sample()
    for dtype in ("bfloat16", "float16"):
        actual = value_of(CATALOGUE[name], jnp.asarray(logits, dtype), labels)
        assert {leaf.dtype for leaf in jax.tree.leaves(actual)} == {jnp.dtype("float32")}
        # Whole numbers are exact in either, so that nothing is rounded before the metric.
        assert_same_value(name, actual, value_of(CATALOGUE[name], logits, labels))


def other_value(option, default):
    """Return another value of an option."""
    if option in OTHER_VALUES:
        return OTHER_VALUES[option]
    if isinstance(default, bool):
        return not default
    if default is None:
        return 0  # a class
    if isinstance(default, int):
        return max(2, default // 30)
    return default / 2 if 0.5 <= default < 1 else 2 * default


# An option that is there because its family has it, and leaves the value of this metric.
SAME_VALUE = {("ood_auroc", "positive")}
OPTIONS = [
    (name, option)
    for name, one in CATALOGUE.items()
    for option in one.defaults()
    if (name, option) not in SAME_VALUE
]


FIRST_WITH_OPTION = set({option: (name, option) for name, option in reversed(OPTIONS)}.values())


@pytest.mark.parametrize(("name", "option"), some_of(OPTIONS, FIRST_WITH_OPTION))
def test_options_are_honoured(name, option):
    metric = CATALOGUE[name]
    if "num_bins" in metric.defaults() and option != "num_bins":
        # 1/2 is an edge of either.
        metric = metric.with_options(num_bins=2 if option == "edges" else 10)
    chosen = {option: other_value(option, metric.defaults()[option])}
    configured = metric.with_options(**chosen)
    for seed in range(5):  # a value may happen to be the same
        data = sample(seed=seed)
        plain, other = value_of(metric, *data), value_of(configured, *data)
        if not_same(plain, other):
            break
    assert not_same(plain, other), chosen


def not_same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any(
        one.shape != other.shape or not np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True)
        for one, other in pairs
    )


def test_options_are_given_once_or_with_each_call():
    metric, data = metrics.adaptive_ece, sample()
    for options in ({"num_bins": 4}, {"excluded_class": 1}, {"num_bins": 3, "binning": "released"}):
        configured = value_of(metric, *data, **options)
        assert metric.value(metric.stat(*data, **options), **options) == configured
        assert metrics.named("adaptive_ece", **options)(*data) == pytest.approx(configured)


@pytest.mark.slow
def test_all_at_once_compiled_is_each_by_itself(monkeypatch):
    """The shared pass: equal terms have one statistic, and the last block of rows is shorter."""
    monkeypatch.setattr(predictions, "_block_rows", lambda rows, classes: 16)
    logits, labels = sample()
    weights = np.tile([0.5, 1.0, 0.0], 20).astype(np.float32)
    actual = metrics.values_of(CATALOGUE, logits, labels, weights)
    assert actual.keys() == CATALOGUE.keys()
    for name, value in actual.items():
        assert_same_value(name, value, value_of(CATALOGUE[name], logits, labels, weights))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "num_classes"),
    [("int8", 127), ("int8", 10), ("uint8", 127), ("int16", 1000), ("int64", 10)],
)
def test_labels_of_any_width_give_the_same_statistics(dtype, num_classes):
    """Also where the terms see the labels as they come, and in what the bootstrap adds up."""
    random = np.random.default_rng(0)
    logits = jnp.asarray(random.standard_normal((8, num_classes)), jnp.float32)
    labels = random.integers(0, num_classes, 8)
    labels[:2] = num_classes - 1, num_classes // 2
    weights, counts = jnp.ones(8), jnp.asarray([[1.0, 0, 2, 1, 1, 0, 3, 0]])

    def statistics_of(labels):
        terms = contract.terms_of(tuple(CATALOGUE.items()), Predictions(logits, labels))
        for name, one in terms.items():
            yield name, one.weigh(None)
            if "labels" in vars(one):  # the other kinds keep no label
                part = prepared_terms.of(one, weights, prepared_terms.large_entries(one))
                yield name, part.stats(counts, counts @ part.design)

    with jax.enable_x64(dtype == "int64"):
        wide, narrow = (statistics_of(jnp.asarray(labels, kind)) for kind in ("int32", dtype))
        for (name, wanted), (_, actual) in zip(wide, narrow, strict=True):
            for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7, err_msg=name)


def test_small_labels_through_the_public_functions():
    random = np.random.default_rng(0)
    logits = random.standard_normal((20, 100)).astype(np.float32)
    labels = random.integers(0, 100, 20)
    key = jax.random.key(0)
    for dtype in ("uint8", "int32"):
        value = metrics.classwise_ece(logits, labels.astype(dtype))
        samples = inference.bootstrap(
            metrics.classwise_ece, logits, labels.astype(dtype), key=key, num_resamples=2
        )
        if dtype == "uint8":
            narrow = value, samples
    np.testing.assert_allclose(narrow[0], value, rtol=1e-6)
    np.testing.assert_allclose(narrow[1], samples, rtol=1e-6)


def of_20_rows(*data_sets):
    """Compute all metrics of up to 40 data sets of 20 rows, in the program that others use."""
    padded = [data_sets[i % len(data_sets)] for i in range(40)]
    values = compiled_for_each()(*map(np.stack, zip(*padded, strict=True)))
    values = jax.device_get(values)
    return [
        {name: jax.tree.map(lambda leaf, i=i: leaf[i], value) for name, value in values.items()}
        for i in range(len(data_sets))
    ]


def shifted_and_rounded(logits, shift):
    """Return logits with a shift, and without it as they are after the rounding: both exact."""
    shifted = (logits + logits.dtype.type(shift)).astype(logits.dtype)
    return shifted, shifted - logits.dtype.type(shift)


def test_a_shift_of_the_logits_changes_nothing():
    """Beyond the rounding that the logits themselves have with it."""
    random = np.random.default_rng(0)
    logits = (3 * random.standard_normal((20, NUM_CLASSES))).astype(np.float32)
    labels, weights = random.integers(0, 2, 20), np.ones(20, np.float32)
    pairs = [shifted_and_rounded(logits, shift) for shift in (1e2, -1e2, 1e5, -1e5)]
    values = of_20_rows(*((z, labels, weights) for pair in pairs for z in pair))
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


def test_the_unit_of_weights_is_arbitrary():
    """Of weights below 1, all of them, only ratios count; equal weights are no weights."""
    random = np.random.default_rng(0)
    logits = (3 * random.standard_normal((20, NUM_CLASSES))).astype(np.float32)
    labels, weights = random.integers(0, 2, 20), random.choice([0.25, 1, 2], 20).astype(np.float32)
    units = np.float32([1, 1e-3, 2.0**-100, 2.0**80])
    equal = np.ones(20, np.float32)
    given = [weights * unit for unit in units] + [equal, equal / 20]
    values, *others, ones, shares = of_20_rows(*((logits, labels, each) for each in given))
    # Weights of 2^78 and more are copies, which these values of many copies tell from few.
    parts = ("debiased", "refinement", "calibration_nll", "calibration_brier")
    of_rows = {name for name in values if any(part in name for part in parts)}
    of_rows |= {"kde_calibration_error", *COUNTS}
    for name, value in values.items():
        for other in others[: 2 if name in of_rows else 3]:
            for field, number in fields_of(value).items():
                if other is not others[2] or field not in ("weight", "low", "high"):
                    assert_same(fields_of(other[name])[field], number, rtol=1e-4, atol=1e-6)
        assert_same(shares[name], ones[name], rtol=1e-4, atol=1e-6)


def fields_of(value):
    return value._asdict() if hasattr(value, "_asdict") else {"value": value}


@pytest.mark.slow
def test_a_shift_of_logits_in_double_precision_changes_nothing():
    """By the statistics, from which the values are computed."""
    random = np.random.default_rng(0)
    logits = 3 * random.standard_normal((8, 10))
    labels = random.integers(0, 2, 8)
    with jax.enable_x64(True):
        for shift in (1e9, -1e9):
            shifted, rounded = (
                {
                    name: terms.weigh(None)
                    for name, terms in contract.terms_of(
                        tuple(CATALOGUE.items()), Predictions(jnp.asarray(z), jnp.asarray(labels))
                    ).items()
                }
                for z in shifted_and_rounded(logits, shift)
            )
            for name, stat in shifted.items():
                for one, other in zip(
                    jax.tree.leaves(stat), jax.tree.leaves(rounded[name]), strict=True
                ):
                    assert one.dtype == other.dtype
                    np.testing.assert_allclose(one, other, 1e-12, 1e-15, err_msg=name)


def impossible_classes(true_class_too):
    """Return 20 rows in which some classes have the logit -inf, one row with all but one."""
    logits, labels = sample(20, seed=1)
    logits[5:12, 2] = -np.inf
    logits[7, 3] = -np.inf
    logits[12, 1:], labels[12] = -np.inf, 0
    logits[13, 1 - labels[13]] = -np.inf
    if true_class_too:
        logits[14, labels[14]] = -np.inf
    return logits, labels, np.ones(20, np.float32)


def test_a_logit_of_minus_infinity_is_a_class_of_probability_zero():
    """As the logit -1e30, whose probability is 0."""
    cases = [impossible_classes(True), impossible_classes(False)]
    finite = [(np.maximum(logits, -1e30), *rest) for logits, *rest in cases]
    actual_true, actual, expected_true, expected = of_20_rows(*cases, *finite)
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


def test_impossible_classes_by_a_reference_in_double_precision():
    logits, labels, weights = impossible_classes(False)
    p = reference.softmax(logits)
    assert (p == 0).sum() > 10
    names = ("nll", "brier", "ece", "classwise_ece", "adaptive_ece", "mean_confidence")
    actual = metrics.values_of({name: CATALOGUE[name] for name in names}, logits, labels)
    for name in names:
        expected = getattr(reference, name)(p, labels, weights)
        np.testing.assert_allclose(actual[name], expected, rtol=3e-6, err_msg=name)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1).mean()
    assert value_of(metrics.mean_entropy, logits, labels) == pytest.approx(entropy, rel=3e-6)
    logits[3, labels[3]] = -np.inf
    several = {"nll": metrics.nll, "brier": metrics.brier}
    actual = metrics.values_of(several, logits, labels)
    assert actual["nll"] == np.inf
    wanted = reference.brier(reference.softmax(logits), labels, weights)
    assert actual["brier"] == pytest.approx(wanted, rel=3e-6)


@pytest.mark.slow
def test_jit_of_vmap_is_one_after_the_other():
    """Each is also what it is without a compilation, and so it is of impossible classes."""
    logits, labels = sample(800)
    logits[40:60:3, 2:] = -np.inf  # in the third part
    weights = np.tile([0.5, 1.0, 0.0, 2.0], 200).astype(np.float32)
    parts = [part.reshape(40, 20, *part.shape[1:]) for part in (logits, labels, weights)]
    actual = compiled_for_each()(*parts)
    for name, value in actual.items():
        alone = value_of(CATALOGUE[name], *(part[2] for part in parts))
        assert_same_value(name, jax.tree.map(lambda leaf: leaf[2], value), alone)


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
    monkeypatch.setattr(predictions, "_block_rows", lambda rows, classes: 3)
    data = (np.zeros((64, num_classes), np.float32), np.zeros(64, np.int32), np.ones(64))

    def values(*shard):
        stats = metrics.stats_of(CATALOGUE, *shard).all_reduce("batch")
        return metrics.values_of_stats(CATALOGUE, stats)

    sharded(values).trace(*data[: 2 + weighted])
