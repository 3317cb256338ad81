"""Metrics as objects: signature, docstring, equality, catalogue; which of them noise raises."""

import inspect
import pydoc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.core.checks import Catalogue, options_of
from calib_jax.metrics import contract
from calib_jax.metrics.bins import BrierParts

CATALOGUE = dict(metrics.catalogue())  # before a test adds one of its own


def test_the_signature_and_the_docstring_are_those_of_the_declaration():
    for name in CATALOGUE:
        metric = metrics.named(name)
        assert inspect.getdoc(metric).partition("\n")[0] in pydoc.plain(pydoc.render_doc(metric))
        parameters = inspect.signature(metric).parameters
        assert list(parameters) == ["logits", "labels", "weights", *metric.defaults()], name
        described = inspect.getdoc(metric)
        for option in metric.defaults():
            assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY, (name, option)
            assert f"\n  {option}: " in described, (name, option)
        taken = options_of(metric.prepare) | options_of(metric.finish)
        assert metric.defaults().items() <= taken.items(), name


def test_a_variant_has_the_options_of_its_family_and_its_own_value():
    signature = inspect.signature(metrics.brier_decomposition)
    assert signature.return_annotation is BrierParts
    assert signature.parameters == inspect.signature(metrics.ece).parameters
    assert metrics.mce.terms_key == metrics.ece.terms_key


def test_metrics_with_equal_options_are_equal():
    """Programs are cached by metric, so a metric configured twice is compiled once."""
    first, second = (metrics.ece.with_options(num_bins=10, edges="left") for _ in range(2))
    assert first is not second
    assert first == second
    assert len({first, second, metrics.ece}) == 2
    assert first.with_options(num_bins=15, edges="right") == metrics.ece
    assert repr(first) == "ece(edges='left', num_bins=10)"
    assert metrics.ece not in (metrics.mce, "ece", None)
    assert first.biased
    assert first.__name__ == "ece"


def test_a_metric_of_ones_own_is_in_the_catalogue(monkeypatch):
    catalogue = Catalogue("metric")
    catalogue.update(CATALOGUE)
    monkeypatch.setattr(contract, "_CATALOGUE", catalogue)

    @metrics.metric(
        lambda predictions, *, power=2: metrics.Columns({"p": predictions.confidence**power}),
        lambda sums: metrics.ratio(sums["p"], sums["weight"]),
    )
    def mean_power(logits, labels=None, weights=None, *, power=2):
        """Compute the mean of a power of the confidence."""

    logits, labels = jnp.zeros((3, 2)), jnp.array([0, 1, 1])
    assert metrics.named("mean_power")(logits, labels) == 0.25
    assert metrics.named("mean_power", power=3)(logits, labels) == 0.125
    with pytest.raises(ValueError, match="the metric 'mean_power' exists already"):
        mean_power.variant()(mean_power.function)


def test_public_names():
    """All metrics are attributes; `dir` lists at most 60 names."""
    assert dir(metrics) == metrics.__all__
    assert len(metrics.__all__) <= 60
    assert all(getattr(metrics, name) is metric for name, metric in CATALOGUE.items())


def test_ace_answers_with_both_names():
    with pytest.raises(AttributeError, match=r"average_calibration_error .* adaptive_ece"):
        _ = metrics.ace
    with pytest.raises(ValueError, match=r"average_calibration_error .* adaptive_ece"):
        metrics.named("ace")


NUM_CLASSES, NUM_ROWS, FEW = 4, 640, 40


@pytest.fixture(scope="module")
def numbers():
    """Metrics of one number, or of one per class.

    Left out: those whose labels mean in and out of distribution, and the one that compares all
    pairs of rows, which takes ten seconds.
    """
    empty = jnp.zeros((NUM_ROWS, NUM_CLASSES)), jnp.zeros(NUM_ROWS, jnp.int32)
    return {
        name: one
        for name, one in metrics.catalogue().items()
        if not {"score", "bandwidth"} & set(one.defaults())
        and jax.tree.map(jnp.shape, jax.eval_shape(one, *empty)) in ((), (NUM_CLASSES,))
    }


@pytest.fixture(scope="module")
def means(numbers):
    """Average metrics of a calibrated model over draws of 40 rows and of 640 rows."""
    random = np.random.default_rng(0)
    shape = (128, NUM_ROWS, NUM_CLASSES)
    logits = (1.5 * random.standard_normal(shape)).astype(np.float32)
    labels = (logits + random.gumbel(size=shape)).argmax(-1)

    @jax.jit
    @jax.vmap
    def drawn(logits, labels, weights):
        values = metrics.values_of(numbers, logits, labels, weights)
        return {name: jnp.nanmean(value) for name, value in values.items()}

    few, many = (
        drawn(logits, labels, np.broadcast_to(np.arange(NUM_ROWS) < count, labels.shape) * 1.0)
        for count in (FEW, NUM_ROWS)
    )
    return {name: (np.asarray(few[name]), np.asarray(many[name])) for name in numbers}


@pytest.mark.slow
def test_metrics_that_fall_with_more_rows_of_a_calibrated_model_are_biased(numbers, means):
    for name, (few, many) in means.items():
        fall = few.mean() - many.mean()
        significant = fall > 4 * few.std() / len(few) ** 0.5
        assert numbers[name].biased == (significant and fall > 0.2 * few.mean()), name


def test_what_the_law_leaves_out_is_biased_too():
    assert metrics.ece.with_options(num_bins=3).biased
    assert metrics.named("adaptive_ece", binning="released").biased
    assert metrics.brier_decomposition.biased
    assert metrics.kde_calibration_error.biased
