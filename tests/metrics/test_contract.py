"""Metrics as objects: help and signature, equality and hash, and registration in the catalogue."""

import inspect
import pickle
import pydoc
import sys
import types

import jax.numpy as jnp
import pytest

from calib_jax import metrics
from calib_jax.core.inputs.options import options_of
from calib_jax.metrics.contract import metric as contract

CATALOGUE = dict(metrics.catalogue())  # before a test adds one of its own
every_metric = pytest.mark.parametrize("name", CATALOGUE)


@every_metric
def test_help_shows_the_docstring_and_the_options(name):
    metric = metrics.named(name)
    summary = inspect.getdoc(metric).partition("\n")[0]
    assert summary != inspect.getdoc(metrics.Metric).partition("\n")[0]
    assert summary in pydoc.plain(pydoc.render_doc(metric))
    parameters = inspect.signature(metric).parameters
    assert list(parameters) == ["logits", "labels", "weights", *metric.defaults()]
    for option, value in metric.defaults().items():
        assert parameters[option].default == value
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY


def test_the_class_shows_itself():
    assert inspect.getdoc(metrics.Metric).startswith("A metric with a mergeable statistic")
    assert list(inspect.signature(metrics.Metric).parameters)[:3] == ["name", "prepare", "finish"]


def test_metrics_with_equal_options_are_equal():
    """Programs are cached by metric, so a metric configured twice is compiled once."""
    first, second = (metrics.ece.with_options(num_bins=10, edges="left") for _ in range(2))
    assert first is not second
    assert first == second
    assert len({first, second, metrics.ece}) == 2
    assert first.with_options(num_bins=15, edges="right") == metrics.ece
    assert inspect.signature(first).parameters["num_bins"].default == 10
    assert metrics.ece not in (metrics.mce, "ece", None)
    biased, unbiased = (
        metrics.Metric("gap", metrics.ece.prepare, metrics.ece.finish, biased=biased)
        for biased in (True, False)
    )
    assert biased != unbiased
    assert biased.with_options(num_bins=3).biased


def test_a_finish_without_a_docstring_makes_a_metric():
    metric = metrics.Metric("share", metrics.accuracy.prepare, lambda sums: sums["hit"])
    assert metric.__name__ == "share"
    assert metric(5 * jnp.eye(2), jnp.array([0, 0])) == 1


def test_a_metric_of_ones_own_is_in_the_catalogue(monkeypatch):
    monkeypatch.setattr(contract._CATALOGUE, "_members", dict(metrics.catalogue()))

    @metrics.metric(lambda predictions, *, power=2: metrics.Columns({
        "power": predictions.confidence**power
    }))  # fmt: skip
    def mean_power(sums):
        """Compute the mean of a power of the confidence."""
        return metrics.ratio(sums["power"], sums["weight"])

    logits, labels = jnp.zeros((3, 2)), jnp.array([0, 1, 1])
    assert metrics.named("mean_power")(logits, labels) == 0.25
    assert metrics.named("mean_power", power=3)(logits, labels) == 0.125
    with pytest.raises(ValueError, match="the metric 'mean_power' exists already"):
        metrics.register(mean_power)


def test_a_metric_of_ones_own_pickles_and_its_module_registers_it(tmp_path, monkeypatch):
    """As a process does that unpickles a metric before it has imported the module."""
    (tmp_path / "own_hits.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    import own_hits

    written = pickle.dumps(own_hits.own_hits.with_options(scale=2.0))
    metrics.catalogue().unregister("own_hits")
    monkeypatch.delitem(sys.modules, "own_hits")
    try:
        copied = pickle.loads(written)
        assert copied == metrics.named("own_hits", scale=2.0)
        assert copied(jnp.eye(2), jnp.array([0, 0])) == 1.0
    finally:
        metrics.catalogue().unregister("own_hits")


OWN = """
from calib_jax import metrics

@metrics.metric(lambda predictions: metrics.Columns({"hit": predictions.hit}))
def own_hits(sums, *, scale=1.0):
    return scale * metrics.ratio(sums["hit"], sums["weight"])
"""


def test_type_checkers_see_every_option():
    """They read the decorated function, so it repeats the options of its terms."""
    for name, metric in CATALOGUE.items():
        seen = options_of(metric.finish)
        assert seen == metric.defaults(), name
        assert seen.items() >= options_of(metric.prepare).items(), name


def test_public_names():
    """All that a user needs is there, no module is, and `dir` shows nothing else."""
    assert dir(metrics) == metrics.__all__ == sorted(set(metrics.__all__))
    assert {"Metric", "catalogue", "metric", "register", "values_of"} <= set(metrics.__all__)
    assert set(CATALOGUE) <= set(metrics.__all__)
    for name in metrics.__all__:
        assert not isinstance(getattr(metrics, name), types.ModuleType)
