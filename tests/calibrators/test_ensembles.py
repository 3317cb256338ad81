"""BBQ and ENIR against slow loops that build every model of the ensemble."""

import fractions
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax.calibrators import bbq, enir
from tests.calibrators.members import problem
from tests.calibrators.test_binned import pav, questions
from tests.selection import first_case

CLASSES = pytest.mark.parametrize("num_classes", [2, 4])


def tied_problem(num_classes):
    """Return 80 rows with ties, and weights."""
    logits, labels = problem(80, num_classes, seed=7, dtype=np.float64)
    logits = np.round(2 * logits) / 2
    return logits, labels, np.random.default_rng(0).choice([0.0, 1.0, 2.0], 80)


def asked_of(num_classes):
    new = 1.3 * problem(40, num_classes, seed=8, dtype=np.float64)[0]
    return new, [p for p, _ in questions(new, np.zeros(40))]


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


@first_case
@CLASSES
@pytest.mark.parametrize("per_bin", [False, True])
def test_bbq_is_the_average_of_all_binnings(num_classes, per_bin, x64):
    logits, labels, weights = tied_problem(num_classes)
    params = bbq.fit(logits, labels, weights, prior_per_bin=per_bin)
    assert params.state.name == "converged"
    new, asked = asked_of(num_classes)
    actual = bbq.answers(params, jnp.asarray(new)).T
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


def test_bbq_counts_a_row_of_a_large_weight_as_so_many_rows():
    """The numbers of bins follow from the weights, which may sum to far more than the rows."""
    logits, labels = problem(80, 2)
    weights = np.where(np.arange(80) < 20, 4.0, 0.0)
    of_weights = bbq.fit(logits[:20], labels[:20], np.full(20, 4.0))
    padded = bbq.fit(logits, labels, weights)  # 80 rows, so no limit of rows is reached
    of_copies = bbq.fit(np.repeat(logits[:20], 4, 0), np.repeat(labels[:20], 4))
    for fitted in (of_weights, padded):
        np.testing.assert_allclose(
            bbq.apply(fitted, logits), bbq.apply(of_copies, logits), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("weight", [1e7, 1e15])
def test_bbq_is_never_certain(weight):
    """In float32 a posterior mean of (weight + s) / (weight + s + tiny) would round to 1."""
    logits, labels = problem(80, 2)
    params = bbq.fit(logits, labels, np.full(80, weight))
    assert params.state.name == "converged"
    assert np.isfinite(params.state.nll_after)
    assert np.isfinite(bbq.apply(params, np.float32([[-99, 99], [99, -99]]))).all()


def near_isotonic_models(mean, mass):
    """Follow the path in exact fractions: yield each lambda where blocks join, and the values."""
    blocks = []
    for value, weight in zip(mean, mass, strict=True):
        if blocks and blocks[-1][0] == value:
            blocks[-1][1] += weight
            blocks[-1][2] += 1
        else:
            blocks.append([value, weight, 1])  # value at lambda, weight, number of groups
    penalty = 0
    while any(a[0] > b[0] for a, b in itertools.pairwise(blocks)):
        above = [0, *(int(a[0] > b[0]) for a, b in itertools.pairwise(blocks)), 0]
        slopes = [(above[i] - above[i + 1]) / b[1] for i, b in enumerate(blocks)]
        waits = [
            (b[0] - a[0]) / (slope - other)
            for (a, b), (slope, other) in zip(
                itertools.pairwise(blocks), itertools.pairwise(slopes), strict=True
            )
            if slope != other
        ]
        step = min(wait for wait in waits if wait > 0)
        penalty += step
        for block, slope in zip(blocks, slopes, strict=True):
            block[0] += slope * step
        merged = [blocks[0]]
        for block in blocks[1:]:
            if block[0] == merged[-1][0]:
                merged[-1] = [block[0], merged[-1][1] + block[1], merged[-1][2] + block[2]]
            else:
                merged.append(block)
        blocks = merged
        yield float(penalty), np.repeat([float(b[0]) for b in blocks], [b[2] for b in blocks])


def ensemble(p, answer, weight, asked):
    """Average the models of the path by their BIC."""
    knots = np.unique(p)
    mass = np.array([weight[p == v].sum() for v in knots])
    hits = np.array([(weight * answer)[p == v].sum() for v in knots])
    exact = [fractions.Fraction(int(h), int(m)) for h, m in zip(hits, mass, strict=True)]
    models = list(near_isotonic_models(exact, [fractions.Fraction(int(m)) for m in mass]))
    if not models:
        return np.interp(asked, knots, hits / mass)
    scores = []
    for _, values in models:
        df = 1 + np.count_nonzero(np.diff(values))
        with np.errstate(divide="ignore"):
            v = np.clip(values, 0, 1)
            fit = scipy.special.xlogy(hits, v) + scipy.special.xlog1py(mass - hits, -v)
        scores.append(fit.sum() - df * np.log(mass.sum()) / 2)
    values = np.clip([values for _, values in models], 0, 1)
    average = np.average(values, axis=0, weights=scipy.special.softmax(scores))
    return np.interp(asked, knots, average)


@first_case
@CLASSES
def test_enir_is_the_average_of_all_near_isotonic_models(num_classes, x64):
    logits, labels, weights = tied_problem(num_classes)
    params = enir.fit(logits, labels, weights)
    assert params.state.name == "converged"
    new, asked = asked_of(num_classes)
    actual = enir.answers(params, jnp.asarray(new)).T
    used = weights > 0
    for k, (p, answer) in enumerate(questions(logits, labels)):
        expected = ensemble(np.round(p[used], 14), answer[used], weights[used], asked[k])
        np.testing.assert_allclose(actual[k], expected, atol=1e-9)


def test_the_path_of_the_slow_loop_minimises_the_criterion():
    """The criterion is convex: no small change of some neighbours decreases it."""
    random = np.random.default_rng(0)
    mean, mass = random.integers(0, 5, 20), random.integers(1, 4, 20)
    as_fractions = [[fractions.Fraction(int(v)) for v in part] for part in (mean, mass)]
    models = list(near_isotonic_models(*as_fractions))
    assert len(models) > 3
    for penalty, values in models:

        def criterion(beta, penalty=penalty):
            falls = np.maximum(beta[:-1] - beta[1:], 0)
            return np.sum(mass * (beta - mean) ** 2) / 2 + penalty * np.sum(falls)

        best = criterion(values)
        for first, last in itertools.combinations(range(21), 2):
            for change in (-1e-4, 1e-4):
                moved = values.copy()
                moved[first:last] += change
                assert criterion(moved) >= best - 1e-12
    expected = pav(np.arange(20), mean, mass)[1]
    np.testing.assert_allclose(models[-1][1], expected, atol=1e-12)


def test_options_are_checked():
    with pytest.raises(ValueError, match="prior_strength must be greater than 0, got 0"):
        bbq.fit(*problem(), prior_strength=0)
