"""Calibrators of bins and steps against slow loops: histogram, isotonic, BBQ, Venn-Abers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax import metrics
from calib_jax.calibrators import bbq, histogram, isotonic, venn_abers
from tests.calibrators import ONES, problem


def pav(score, target, weight):
    """Pool adjacent violators, one block at a time; return knots and what the function is there."""
    blocks = []
    for x in np.unique(score):
        here = score == x
        blocks.append([[x], weight[here].sum(), (weight * target)[here].sum()])
        while len(blocks) > 1 and blocks[-2][2] / blocks[-2][1] >= blocks[-1][2] / blocks[-1][1]:
            knots, mass, total = blocks.pop()
            blocks[-1] = [blocks[-1][0] + knots, blocks[-1][1] + mass, blocks[-1][2] + total]
    knots = np.concatenate([block[0] for block in blocks])
    return knots, np.repeat([b[2] / b[1] for b in blocks], [len(b[0]) for b in blocks])


def questions(logits, labels):
    """Yield probability and answer of each question: class 1 of two, or every class."""
    p = scipy.special.softmax(logits, axis=-1)
    for k in [1] if logits.shape[1] == 2 else range(logits.shape[1]):
        yield p[:, k], (labels == k).astype(float)


def rounded_problem(num_classes):
    """Return logits with many ties, and weights."""
    logits, labels = problem(300, num_classes, seed=7, dtype=np.float64)
    if num_classes == 2:  # every tenth probability, some often
        logits[:, 0], logits[:, 1] = 0, np.round(2 * logits[:, 1]) / 2
    return logits, labels, np.random.default_rng(0).choice([0.5, 1.0, 3.0], 300)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_isotonic_is_a_slow_loop(num_classes, x64):
    logits, labels, weights = rounded_problem(num_classes)
    params = isotonic.fit(logits, labels, weights)
    assert params.state.name == "converged"
    new = 1.3 * problem(200, num_classes, seed=8, dtype=np.float64)[0]
    actual = jax.jit(isotonic.answers)(params, jnp.asarray(new)).T
    new_p = scipy.special.softmax(new, axis=-1)
    new_p = new_p[:, 1:] if num_classes == 2 else new_p
    for k, (p, answer) in enumerate(questions(logits, labels)):
        knots, values = pav(np.round(p, 14), answer, weights)
        np.testing.assert_allclose(actual[k], np.interp(new_p[:, k], knots, values), atol=1e-9)
        assert (np.diff(params.values[k]) >= 0).all()


def near_ties(p, resolution):
    """Replace sorted numbers by the first of their group, one after the other."""
    merged, first = [], -np.inf
    for one in p:
        first = one if one - first >= resolution else first
        merged.append(first)
    return np.array(merged)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_near_ties_are_pooled_as_a_slow_loop_does(dtype, x64):
    random = np.random.default_rng(0)
    resolution = np.finfo(dtype).resolution
    merged = jax.jit(isotonic.near_ties_merged)
    for spread in (0.1, 0.7, 1.0, 3.0, 40.0):  # of neighbours, in parts of the resolution
        p = np.cumsum(spread * resolution * random.exponential(size=64)).astype(dtype)
        p[60:] = np.inf
        expected = np.append(near_ties(p[:60], resolution), [np.inf] * 4)
        np.testing.assert_array_equal(merged(p), expected)
    equal = np.full(64, 0.3, dtype)
    np.testing.assert_array_equal(merged(equal), equal)


@pytest.mark.parametrize(
    "target",
    [
        np.arange(64) % 2,
        np.arange(64)[::-1],
        np.append(np.arange(63.0), -1000.0),  # the last one pulls all others down, one a round
        np.append(1000.0, np.arange(63.0)),
        np.random.default_rng(0).standard_normal(64).cumsum(),
    ],
)
def test_pooling_is_a_slow_loop_in_its_worst_cases(target):
    score, weight = np.arange(64.0), 1.0 + np.arange(64) % 3
    _, expected = pav(score, target, weight)
    arguments = (jnp.asarray(one, jnp.float32) for one in (score, target, weight))
    np.testing.assert_allclose(jax.jit(isotonic.pooled)(*arguments), expected, rtol=1e-5)


def test_large_weights_do_not_pool_all_examples():
    logits, labels = problem()
    expected, *others = (
        isotonic.fit(logits, labels, np.full(80, weight, np.float32)) for weight in (1, 1e-24, 1e24)
    )
    for params in others:
        np.testing.assert_allclose(params.values, expected.values, atol=1e-6)


def test_no_step_of_fits_under_vmap_copies_the_rows_of_all():
    rows = jnp.zeros((3, 5, 700))
    program = str(jax.make_jaxpr(jax.vmap(jax.vmap(isotonic.pooled)))(rows, rows, rows))
    assert "while" in program
    assert "bool[3,5]" not in program  # a condition for each fit


def test_an_isotonic_fit_of_rows_on_an_accelerator_runs_on_the_cpu(monkeypatch):
    logits, labels = problem()
    expected = isotonic.fit(logits, labels)
    *_, other = jax.devices()
    given = jax.device_put((jnp.asarray(logits), jnp.asarray(labels)), other)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    params = isotonic.fit(*given)
    assert {leaf.device for leaf in jax.tree.leaves(params)} == {other}
    np.testing.assert_array_equal(params.values, expected.values)


@pytest.mark.parametrize(("bins", "num_classes"), [("width", 2), ("mass", 2), ("mass", 4)])
def test_histogram_is_a_slow_loop(bins, num_classes, x64):
    logits, labels, weights = rounded_problem(num_classes)
    weights /= 1000  # of which no bin holds as much as 1
    params = histogram.fit(logits, labels, weights, num_bins=10, bins=bins)
    actual = np.asarray(jax.jit(histogram.answers)(params, jnp.asarray(logits))).T
    frequency = np.asarray(params.frequency)
    for k, (p, answer) in enumerate(questions(logits, labels)):
        edges = np.asarray(params.edges[k])
        assert (edges[0], edges[-1]) == (0, 1)
        index = np.searchsorted(edges[1:-1], p)
        for b in range(10):
            here = index == b
            middle = (edges[b] + edges[b + 1]) / 2
            wanted = np.average(answer[here], weights=weights[here]) if here.any() else middle
            np.testing.assert_allclose(frequency[k, b], wanted, rtol=1e-9)
            np.testing.assert_allclose(actual[k][here], wanted, rtol=1e-9)
        if bins == "width":
            np.testing.assert_allclose(edges, np.linspace(0, 1, 11), rtol=1e-7)
        elif num_classes > 2:  # no ties: every bin has a tenth of the weight, to half an example
            mass = np.bincount(index, weights)
            np.testing.assert_allclose(mass, weights.sum() / 10, atol=3e-3)


@pytest.mark.parametrize(("calibrator", "num_classes"), [(histogram, 3), (isotonic, 2)])
def test_the_floor_keeps_the_nll_finite(calibrator, num_classes):
    logits, labels = problem(80, num_classes)
    labels = np.where(logits[:, 1] > 1, 1, np.where(labels == 1, 0, labels))
    params = calibrator.fit(logits, labels, ONES)
    raw = np.asarray(jax.jit(calibrator.answers)(params, jnp.asarray(logits)))
    assert (raw == 0).any()
    for floor in (1e-6, 1e-3):
        given = {} if floor == 1e-6 else {"floor": floor}  # the default
        log_p = np.asarray(calibrator.apply(params, logits, **given), np.float64)
        np.testing.assert_allclose(np.exp(log_p).sum(-1), 1, rtol=1e-5)
        assert np.exp(log_p.min()) >= 0.3 * floor
        both = np.concatenate([1 - raw, raw], axis=1) if num_classes == 2 else raw
        lifted = np.maximum(both, floor)
        expected = lifted / lifted.sum(-1, keepdims=True)
        np.testing.assert_allclose(np.exp(log_p), expected, rtol=1e-4)
    assert np.isinf(calibrator.apply(params, logits, floor=0.0)).any()
    with pytest.raises(ValueError, match=r"floor must lie in \[0, 0.5\], got 2"):
        calibrator.apply(params, logits, floor=2)


def test_options_are_checked():
    with pytest.raises(ValueError, match="did you mean 'mass'"):
        histogram.fit(*problem(), bins="mas")
    with pytest.raises(ValueError, match="num_bins must be at least 1, got 0"):
        histogram.fit(*problem(), num_bins=0)
    with pytest.raises(ValueError, match="prior_strength must be greater than 0, got 0"):
        bbq.fit(*problem(), prior_strength=0)
    with pytest.raises(ValueError, match="need at least 2 classes"):
        histogram.fit(np.zeros((4, 1)), np.zeros(4, int))


def tied_problem(num_classes):
    """Return 80 rows with ties, and weights."""
    logits, labels = problem(80, num_classes, seed=7, dtype=np.float64)
    logits = np.round(2 * logits) / 2
    return logits, labels, np.random.default_rng(0).choice([0.0, 1.0, 2.0], 80)


def binnings(p, answer, weight, asked, per_bin):
    """Average all histograms of equal mass: sets of examples, one model after the other."""
    values = np.unique(p)
    mass = np.array([weight[p == v].sum() for v in values])
    hits = np.array([(weight * answer)[p == v].sum() for v in values])
    n = mass.sum()
    before = np.cumsum(mass) - mass
    scores, predictions = [], []
    for num_bins in range(max(1, int(n ** (1 / 3) / 10)), int(np.ceil(10 * n ** (1 / 3))) + 1):
        if num_bins > n:
            break
        bins = [
            [i for i in range(len(values)) if before[i] * num_bins // n == b]
            for b in range(num_bins)
        ]
        bins = [members for members in bins if members]
        edges = [0.0]
        edges += [(values[m[0] - 1] + values[m[0]]) / 2 for m in bins[1:]]
        edges += [1.0]
        strength = 2.0 if per_bin else 2.0 / len(bins)
        score, frequencies = 0.0, []
        for number, members in enumerate(bins):
            middle = np.clip((edges[number] + edges[number + 1]) / 2, 0.005, 0.995)
            k, m = hits[members].sum(), mass[members].sum()
            a, b = strength * middle, strength * (1 - middle)
            score += scipy.special.betaln(k + a, m - k + b) - scipy.special.betaln(a, b)
            frequencies.append((k + a) / (m + a + b))
        index = np.searchsorted(edges[1:-1], asked, side="right")
        scores.append(score)
        predictions.append(np.array(frequencies)[index])
    return np.average(predictions, axis=0, weights=scipy.special.softmax(scores))


@pytest.mark.parametrize(("num_classes", "per_bin"), [(2, False), (4, True)])
def test_bbq_is_the_average_of_all_binnings(num_classes, per_bin, x64):
    logits, labels, weights = tied_problem(num_classes)
    params = bbq.fit(logits, labels, weights, prior_per_bin=per_bin)
    assert params.state.name == "converged"
    new = 1.3 * problem(40, num_classes, seed=8, dtype=np.float64)[0]
    asked = [p for p, _ in questions(new, np.zeros(40))]
    actual = jax.jit(bbq.answers)(params, jnp.asarray(new)).T
    used = weights > 0
    expected = [
        binnings(np.round(p[used], 12), answer[used], weights[used], points, per_bin)
        for (p, answer), points in zip(questions(logits, labels), asked, strict=True)
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
    p = np.exp(bbq.apply(params, new))
    rows = np.transpose(expected)
    rows = np.concatenate([1 - rows, rows], axis=1) if num_classes == 2 else rows
    np.testing.assert_allclose(p, rows / rows.sum(axis=1, keepdims=True), rtol=1e-9)


def test_bbq_of_one_row_is_its_posterior_mean():
    params = bbq.fit(np.array([[0.0, 1.0]]), np.array([1]))
    np.testing.assert_allclose(params.values, [[2 / 3]], rtol=1e-6)


def test_a_class_that_is_never_possible_has_equal_steps():
    logits, labels = problem()
    logits[:, 2] = -np.inf
    params = bbq.fit(logits, labels % 2)
    np.testing.assert_allclose(params.edges[2], np.arange(81) / 80, rtol=1e-5)
    np.testing.assert_allclose(params.values[2], (np.arange(80) + 0.5) / 80, rtol=1e-5)
    knots, values, _ = isotonic.fit(logits, labels % 2)
    np.testing.assert_allclose([knots[2], values[2]], 2 * [np.arange(80) / 79], rtol=1e-5)


def test_bbq_averages_as_many_binnings_in_any_order_of_the_rows():
    """Scaled to a mean of 1, these weights sum to 20, or in the second order to 19.999998."""
    weights = np.repeat(np.float32([1, 2, 0.25]), [11, 6, 3])
    logits, labels = problem(20, 2)
    orders = [np.random.default_rng(seed).permutation(20) for seed in range(6)]
    fits = [bbq.fit(logits[order], labels[order], weights[order]) for order in orders]
    for again in fits[1:]:
        np.testing.assert_allclose(again.values, fits[0].values, rtol=1e-5)


def test_bbq_is_never_certain():
    """In float32 a posterior mean of (weight + s) / (weight + s + tiny) would round to 1."""
    logits, labels = problem(80, 2)
    params = bbq.fit(logits, labels, np.full(80, 1e15))
    assert params.state.name == "converged"
    assert np.isfinite(params.state.nll_after)
    assert np.isfinite(bbq.apply(params, np.float32([[-99, 99], [99, -99]]))).all()


def refitted(score, target, weight, new):
    """Fit isotonic regressions with the new example and each answer; return p0 and p1."""
    both = []
    for answer in (0, 1):
        knots, values = pav(np.append(score, new), np.append(target, answer), np.append(weight, 1))
        both.append(values[np.flatnonzero(knots == new)[0]])
    return both


def question(logits, labels):
    """Return the probability of class 1 of two, or of the predicted class, and the answer."""
    p = scipy.special.softmax(logits, axis=1)
    if logits.shape[1] == 2:
        return p[:, 1], labels == 1
    return p.max(axis=1), p.argmax(axis=1) == labels


@pytest.mark.parametrize("num_classes", [2, 4])
def test_it_is_two_isotonic_regressions_for_each_example(num_classes, x64):
    logits, labels = problem(80, num_classes, seed=3, dtype=np.float64)
    logits = np.round(2 * logits) / 2  # some scores are equal
    new = np.concatenate([logits[:20], 1.3 * problem(40, num_classes, 4, dtype=np.float64)[0]])
    new = np.concatenate([new, 30 * new[-5:]])  # beyond all fitted scores
    weights = np.random.default_rng(0).choice([0.0, 1.0, 1.5, 3.0], 80)
    params = venn_abers.fit(logits, labels, weights)
    score, target = question(logits, labels)
    # Compute the scores alike, so that equal ones stay equal.
    score, asked = (np.round(s, 12) for s in (score, question(new, np.zeros(len(new)))[0]))
    used = weights > 0
    expected = [refitted(score[used], target[used], weights[used], s) for s in asked]
    p0, p1 = np.transpose(expected)
    actual = venn_abers.bounds(params, jnp.asarray(new))
    np.testing.assert_allclose(actual[0], p0, atol=1e-9)
    np.testing.assert_allclose(actual[1], p1, atol=1e-9)
    merged = p1 / (1 - p0 + p1)
    answer = np.exp(venn_abers.apply(params, new))
    if num_classes == 2:
        np.testing.assert_allclose(answer[:, 1], merged, rtol=1e-9)
        return
    p = scipy.special.softmax(new, axis=1)
    top = p.argmax(axis=1)
    np.testing.assert_allclose(answer[np.arange(len(new)), top], merged, rtol=1e-9)
    rest = np.where(np.arange(num_classes) == top[:, None], 0, answer)
    share = np.where(np.arange(num_classes) == top[:, None], 0, p)
    share /= share.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(rest, share * (1 - merged)[:, None], rtol=1e-9)


@pytest.mark.parametrize("hits", ["all", "none", "falling", "rising"])
def test_the_hull_in_its_extreme_cases(hits, x64):
    count = np.arange(80)
    target = {"all": count >= 0, "none": count < 0, "falling": count < 40, "rising": count >= 40}
    target = target[hits]
    score = (count + 1) / 82
    asked = np.append(score, [0.005, 0.995])  # below and above all fitted scores, too
    logits = np.log(np.stack([1 - asked, asked], axis=1))
    params = venn_abers.fit(logits[:80], target.astype(int), np.ones(80))
    expected = [refitted(score, target, np.ones(80), s) for s in asked]
    actual = np.transpose(venn_abers.bounds(params, jnp.asarray(logits)))
    np.testing.assert_allclose(actual, expected, atol=1e-9)
    assert (actual[:, 0] <= actual[:, 1]).all()


def test_small_weights_beside_a_large_sum_leave_p0_below_p1():
    random = np.random.default_rng(0)
    stated = np.linspace(0.02, 0.98, 50_000, dtype=np.float32)
    weights, correct = random.gamma(0.3, 1, len(stated)), random.random(len(stated)) < stated
    params = venn_abers.fit(metrics.Stated(stated, correct), weights=weights)
    p0, p1 = venn_abers.bounds(params, stated)
    assert (p0 <= p1).all()


def test_other_numbers_of_classes_are_refused_or_nan_inside_jit():
    params = venn_abers.fit(*problem(80, 2), ONES)
    logits = jnp.asarray(problem()[0])
    with pytest.raises(ValueError, match=r"fitted on 2 classes and the logits .* have 3"):
        venn_abers.bounds(params, logits)
    assert np.isnan(jax.jit(venn_abers.apply)(params, logits)).all()
