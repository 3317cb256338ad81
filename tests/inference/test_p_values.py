"""Exact p-values and coverage: draws that combine versions of blocks, and rare errors."""

import jax
import numpy as np
import pytest
from scipy import stats

from calib_jax import inference, metrics
from calib_jax.inference import class_gaps, gaps

from . import simulated

EIGHT_BLOCKS = {"_OUTCOMES": 0, "_BLOCKS": 8}


def few(monkeypatch, **constants):
    for name, value in (EIGHT_BLOCKS | constants).items():
        monkeypatch.setattr(gaps if hasattr(gaps, name) else class_gaps, name, value)


def class_draws(key, p, labels, num_bins, num_resamples, at_a_time=10**9):
    order = np.arange(len(p))
    edges = np.linspace(0, 1, num_bins + 1, dtype=np.float32)[1:-1]
    options = {"edges": edges, "num_resamples": num_resamples, "draws_at_a_time": at_a_time}
    chunks = list(class_gaps.class_draws(key, p, order, labels, **options))
    return gaps.Draws(*map(np.concatenate, zip(*chunks, strict=True)))


@pytest.mark.parametrize("num_versions", [1, 7])
@pytest.mark.parametrize("kind", ["hits", "classes"])
def test_rank_of_a_calibrated_models_data_is_uniform(kind, num_versions, monkeypatch):
    """Check simulated sets; one version gives a group of 256 shifts, in which ties are common."""
    few(monkeypatch, _VERSIONS=num_versions)
    random = np.random.default_rng(num_versions)
    ranks, num_sets = [], {"hits": 250, "classes": 60}[kind]
    for trial in range(num_sets):
        key = np.array([trial, 0], np.uint32)
        if kind == "hits":
            confidence, design = random.random(20), random.standard_normal((20, 1))
            hit = (random.random(20) < confidence).astype(float)
            draws = gaps.hit_draws(jax.random.wrap_key_data(key), confidence, hit, design, 19)
            value, null = (hit @ design)[0], draws.ranked[:, 0]
        else:
            p = random.dirichlet(np.ones(3), 20)
            labels = (p.cumsum(-1)[:, :-1] < random.random((20, 1))).sum(-1)
            draws = class_draws(jax.random.wrap_key_data(key), p, labels, 2, 19)
            factors = random.standard_normal(6)
            cell = 2 * labels + (p[np.arange(20), labels] > 0.5)
            value, null = factors[cell].sum(), draws.ranked @ factors
        ranks.append(1 + np.sum(null >= value - 1e-6))
    for rank in (1, 2, 5, 10, 15):  # p = rank / 20
        share, deviation = np.mean(np.array(ranks) <= rank), np.sqrt(rank / 20 / num_sets)
        assert share <= rank / 20 + 4 * deviation
        if num_versions == 7:  # ties have probability 8^-8
            assert share >= rank / 20 - 4 * deviation


def test_fresh_draws_have_the_law_of_the_model_and_not_of_the_data(monkeypatch):
    few(monkeypatch, _VERSIONS=63, _BLOCKS=100)
    _, _, p = simulated(np.random.default_rng(0), 300, 3)
    labels = np.argmin(p, axis=1)  # as wrong as possible
    cells = 4 * np.arange(3) + np.ceil(4 * p).astype(int) - 1
    member = np.eye(12)[cells]  # examples, classes, cells
    mean = np.einsum("nk,nkc->c", p, member)
    covariance = np.diag(mean) - np.einsum("nkc,nld,nk,nl->cd", member, member, p, p)
    draws = class_draws(jax.random.key(0), p, labels, 4, 4000)
    deviation = np.sqrt(np.diag(covariance))
    # 63 versions of each block bound the precision, whatever the number of draws.
    np.testing.assert_allclose(draws.fresh.mean(0), mean, atol=4 * deviation.max() / np.sqrt(63))
    np.testing.assert_allclose(np.cov(draws.fresh.T), covariance, atol=0.1 * covariance.max())
    top = p.argmax(1)
    confidence, design = p.max(1), np.eye(3)[top]
    hit = (labels == top).astype(float)
    hits = gaps.hit_draws(jax.random.key(1), confidence, hit, design, 4000)
    spread = (confidence * (1 - confidence)) @ design
    np.testing.assert_allclose(
        hits.fresh.mean(0), confidence @ design, atol=4 * np.sqrt(spread.max() / 63)
    )
    np.testing.assert_allclose(np.var(hits.fresh, axis=0), spread, rtol=0.12)


def test_ranked_draws_take_whole_blocks_of_the_data(monkeypatch):
    """Certain models draw the same label always, so all others are the data's."""
    few(monkeypatch, _VERSIONS=4)
    p = np.eye(3)[np.zeros(80, int)]
    draws = class_draws(jax.random.key(2), p, np.ones(80, int), 2, 500)
    np.testing.assert_array_equal(draws.fresh, np.tile([0, 80, 0, 0, 0, 0], (500, 1)))
    of_data = draws.ranked[:, 2]  # class 1 in its first bin
    np.testing.assert_array_equal(draws.ranked[:, 1] + of_data, 80)
    assert np.all(of_data % 10 == 0)
    assert of_data.mean() == pytest.approx(80 / 5, abs=4 * 80 * np.sqrt(0.16 / 8 / 500))
    hits = gaps.hit_draws(jax.random.key(3), np.ones(80), np.zeros(80), np.ones((80, 1)), 500)
    assert np.all(hits.fresh == 80)
    assert np.all(hits.ranked % 10 == 0)
    assert hits.ranked.mean() == pytest.approx(64, abs=4 * 80 * np.sqrt(0.16 / 8 / 500))


def test_clusters_of_a_paired_test_may_have_any_names():
    values = np.random.default_rng(0).normal(0.3, 1, 120)
    cluster = np.repeat(np.arange(12), 10)
    wanted = inference.paired_test(values, cluster, 0.9, student=True)
    for names in (100 * cluster + 7, np.char.add("image ", cluster.astype(str))):
        assert inference.paired_test(values, names, 0.9, student=True) == pytest.approx(wanted)


def test_chunks_of_draws_change_nothing(monkeypatch):
    _, labels, p = simulated(np.random.default_rng(1), 83, 3)  # the last block is not full
    few(monkeypatch, _VERSIONS=5)
    whole = class_draws(jax.random.key(4), p, labels, 3, 30)
    chunks = class_draws(jax.random.key(4), p, labels, 3, 30, at_a_time=7)
    np.testing.assert_array_equal(whole, chunks)
    assert np.all(whole.fresh.sum(1) == 83)
    assert np.all(whole.ranked.sum(1) == 83)


def logits_of(confidence, num_rows):
    """Return the logits of a binary model that predicts class 0 with one confidence."""
    return np.tile(np.log([[confidence, 1 - confidence]]), (num_rows, 1)).astype(np.float32)


def numbers_of_errors(num_rows, accuracy):
    """Return the numbers of errors that occur, and their probabilities."""
    errors = np.arange(num_rows + 1)
    probability = stats.binom.pmf(errors, num_rows, 1 - accuracy)
    kept = probability > 1e-6
    return zip(errors[kept], probability[kept], strict=True)


def labels_of(errors, num_rows):
    return (np.arange(num_rows) < errors).astype(int)


@pytest.mark.parametrize(
    ("num_rows", "confidence", "accuracy"),
    [(1000, 0.99, 0.999), (1000, 0.999, 0.99), (200, 0.95, 0.99), (500, 0.9, 0.7)],
)
def test_the_interval_of_the_squared_error_covers(num_rows, confidence, accuracy):
    truth, covered = (confidence - accuracy) ** 2, 0.0
    logits = logits_of(confidence, num_rows)
    for errors, probability in numbers_of_errors(num_rows, accuracy):
        error = inference.debiased_squared_error(logits, labels_of(errors, num_rows), num_bins=1)
        covered += probability * (error.low <= truth <= error.high)
    assert covered >= 0.89


@pytest.mark.parametrize(
    ("num_rows", "expected_errors", "half"), [(1000, 3, 0.002), (3000, 6, 0.001), (200, 6, 0.01)]
)
def test_two_models_with_equal_errors_rarely_differ(num_rows, expected_errors, half):
    """One model states too much, the other too little, by the same amount."""
    accuracy = 1 - expected_errors / num_rows
    pair = [logits_of(accuracy + sign * half, num_rows) for sign in (1, -1)]
    rejected = covered = 0.0
    for errors, probability in numbers_of_errors(num_rows, accuracy):
        change = inference.compare_calibration(*pair, labels_of(errors, num_rows))
        rejected += probability * (change.p_value <= 0.05)
        covered += probability * (change.low <= 1e-9 and change.high >= -1e-9)
    assert rejected <= 0.06
    assert covered >= 0.89


@pytest.mark.parametrize(
    ("num_rows", "accuracy", "a", "b"),
    [(200, 0.9, 0.93, 0.87), (200, 0.8, 0.9, 0.79), (200, 0.9, 0.95, 0.9)],
)
def test_the_interval_of_two_eces_covers_where_one_bin_holds_all_rows(num_rows, accuracy, a, b):
    """Two constant models: the sign of a small gap is uncertain, and their noise is the same."""
    pair = [logits_of(confidence, num_rows) for confidence in (a, b)]
    truth, covered = abs(b - accuracy) - abs(a - accuracy), 0.0
    for errors, probability in list(numbers_of_errors(num_rows, accuracy))[::2]:
        if probability > 1e-3:
            labels, key = labels_of(errors, num_rows), jax.random.key(int(errors))
            change = inference.compare_ece(*pair, labels, key=key, num_resamples=300)
            covered += 2 * probability * (change.low - 1e-6 <= truth <= change.high + 1e-6)
    assert covered >= 0.9


def test_an_accuracy_of_one_is_not_certain():
    of_hits = {"top": metrics.top_k.with_options(k=1), "accuracy": metrics.accuracy}
    several = of_hits | {"error": metrics.error}
    logits, right = logits_of(0.99, 50), np.zeros(50, int)
    draws = {"key": jax.random.key(0), "level": 0.8, "num_resamples": 20}
    shares = np.repeat([0.3, 0.6], 25)  # as certain as 45 rows: (25 * 0.9) ** 2 / (25 * 0.45)
    for rows, weights, clusters in (
        (50, None, None),
        (50, np.repeat([2, 0], 25), None),
        (45, shares, None),
        (10, None, np.arange(50) // 5),
    ):
        exact = stats.binomtest(rows, rows).proportion_ci(0.8, "exact")
        found = inference.estimates(several, logits, right, weights, clusters=clusters, **draws)
        for name in of_hits:
            assert found[name].interval == "Clopper-Pearson"
            np.testing.assert_allclose(found[name][1:3], exact, rtol=1e-5)
        np.testing.assert_allclose(found["error"][1:3], (0, 1 - exact.low), rtol=1e-4)
    wrong = inference.estimates(several, logits, 1 - right, **draws)["accuracy"]
    exact = stats.binomtest(0, 50).proportion_ci(0.8, "exact")
    np.testing.assert_allclose(wrong[1:3], exact, rtol=1e-4)
    infinite = inference.estimates(metrics.nll, metrics.Stated(np.ones(50), right), **draws)
    assert infinite[:3] == (np.inf, np.inf, np.inf)  # and NumPy does not warn
