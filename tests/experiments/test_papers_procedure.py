"""The procedure, against NumPy and SciPy that share no code with it."""

import types

import numpy as np
import pytest
import scipy.special
import scipy.stats

from experiments.papers.judge import blocks, estimates, pooling, procedure, simulation, states
from experiments.papers.judge.estimates import Columns, Predictions
from experiments.papers.judge.values import Value

pytestmark = pytest.mark.papers


def test_the_pooled_variance_is_that_within_losses():
    table = np.random.default_rng(0).normal(size=(20, 3)) + np.arange(20)[:, None]
    pooled = pooling.pooled(table)
    within = sum(np.sum((row - row.mean()) ** 2) for row in table)
    assert pooled.variance == pytest.approx(within / 40)
    assert pooled.freedom == 40


def test_homogeneity_agrees_with_bartlett_where_its_chi_square_is_exact_enough():
    draws = np.random.default_rng(1)
    for deviations in ([1, 1, 1, 1], [1, 1.2, 1.4, 1], [1, 1, 2, 1]):
        table = np.array(deviations)[:, None] * draws.normal(size=(4, 40))
        expected = scipy.stats.bartlett(*table).pvalue
        assert pooling.pooled(table).homogeneity == pytest.approx(expected, abs=0.02)


def test_homogeneity_rejects_losses_without_noise():
    table = np.array([[0.0, 0.0, 0.0], [0.1, 0.2, 0.3]])
    assert pooling.pooled(table).homogeneity < 0.05


def test_one_seed_has_no_pooled_variance():
    with pytest.raises(ValueError, match="1 seeds has no pooled variance"):
        pooling.pooled(np.zeros((3, 1)))


def test_the_variance_of_a_square_is_that_of_draws():
    square = np.random.default_rng(0).normal(3.0, 0.5, 400_000) ** 2
    assert procedure.variance_of_square(9.25, 0.25) == pytest.approx(np.var(square), rel=0.01)


def test_benjamini_hochberg_agrees_with_scipy():
    p_values = np.random.default_rng(0).uniform(size=12) ** 3
    adjusted = procedure.benjamini_hochberg({str(i): p for i, p in enumerate(p_values)})
    expected = scipy.stats.false_discovery_control(p_values)
    assert [adjusted[str(i)] for i in range(12)] == pytest.approx(list(expected))


def binned(draws, shift):
    """Residuals of 500 examples whose confidence is too large by `shift`."""
    confidence = draws.uniform(0.4, 0.95, 500)
    right = draws.uniform(size=500) < confidence - shift
    return estimates.squared_error(Columns(confidence, right))


def test_a_comparison_adds_the_variances_of_seeds_test_and_validation():
    draws = np.random.default_rng(0)
    first, second = ([binned(draws, shift) for _ in range(3)] for shift in (0.3, 0.1))
    pooled = pooling.Pooled(0.01**2, 40, 0.5)
    value = procedure.difference(first, second, pooled)
    wider = procedure.difference(first, second, pooled, of_validation=1e-3)
    means = [np.mean([b.value for b in models]) for models in (first, second)]
    # root-CE2 has the variance 1e-4, so CE2 has 4 m^2 1e-4 + 2e-8, with m^2 + 1e-4 = its mean.
    of_seeds = sum(4 * (mean - 1e-4) * 1e-4 + 2e-8 for mean in means) / 3
    assert value.value == pytest.approx(means[0] - means[1])
    assert value.deviation**2 - value.of_rows == pytest.approx(of_seeds)
    assert value.freedom == 40
    assert wider.deviation**2 - value.deviation**2 == pytest.approx(1e-3)
    assert wider.of_rows - value.of_rows == pytest.approx(1e-3)


def test_a_block_with_unequal_variances_keeps_the_seeds_of_a_comparison():
    draws = np.random.default_rng(0)
    first, second = ([binned(draws, shift) for _ in range(3)] for shift in (0.3, 0.1))
    value = procedure.difference(first, second, pooling.Pooled(1e-8, 40, 0.01))
    differences = [a.value - b.value for a, b in zip(first, second, strict=True)]
    assert value.freedom == 2
    assert value.deviation**2 - value.of_rows == pytest.approx(np.var(differences, ddof=1) / 3)


def test_resampled_errors_are_those_of_the_repeated_rows():
    draws = np.random.default_rng(0)
    part = Predictions(draws.normal(size=(60, 4)) * 2, draws.integers(0, 4, 60))
    rows = draws.integers(0, 60, 60)
    weights = np.bincount(rows, minlength=60)[None].astype(np.float32)
    eces = blocks.resampled_eces(part, weights)[:, 0]
    for place, temperature in ((4, 0.5), (9, 1.0), (24, 2.5)):
        top = scipy.special.softmax(part.logits[rows] / temperature, axis=1).max(axis=1)
        hit = part.logits[rows].argmax(axis=1) == part.labels[rows]
        numbers = np.minimum((top * 15).astype(int), 14)
        sums = [abs(np.sum((top - hit)[numbers == b])) for b in range(15)]
        assert eces[place] == pytest.approx(sum(sums) / 60, abs=1e-6)


def test_the_size_is_kept_and_pooling_has_more_power():
    shares = simulation.simulate(simulation.EFFECTS, unequal=False, seed=5, times=150)
    own, together, _ = shares.values()
    assert together["a false rejection"] <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5
    assert together["power at 3 points"] > own["power at 3 points"] + 0.5


@pytest.mark.parametrize(
    ("scale", "judged", "values", "state"),
    [
        ("cpu", "holds", {}, "holds"),
        ("cpu", "does not hold", {"change": Value(-1.0, 0.1, 2)}, "contradicted here"),
        ("gpu", "does not hold", {"change": Value(-1.0, 0.1, 2)}, "outside the regime"),
        ("gpu", "undecided", {"change": Value(-1.0, 0.9, 2)}, "undecided"),
        ("table", "does not hold", {"lowest": Value(10, rows=11)}, "mostly"),
        ("table", "does not hold", {"lowest": Value(3, rows=11)}, "contradicted here"),
        ("cpu", None, {}, "not testable"),
    ],
)
def test_states(scale, judged, values, state):
    claim = types.SimpleNamespace(scale=scale)
    assert states.state_of(claim, judged, values) == state
