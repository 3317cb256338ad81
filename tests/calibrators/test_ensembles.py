"""BBQ against slow loops that build every model of the ensemble."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax.calibrators import bbq
from tests.calibrators.members import problem
from tests.calibrators.test_binned import questions

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


@pytest.mark.parametrize("weight", [1e7, 1e15])
def test_bbq_is_never_certain(weight):
    """In float32 a posterior mean of (weight + s) / (weight + s + tiny) would round to 1."""
    logits, labels = problem(80, 2)
    params = bbq.fit(logits, labels, np.full(80, weight))
    assert params.state.name == "converged"
    assert np.isfinite(params.state.nll_after)
    assert np.isfinite(bbq.apply(params, np.float32([[-99, 99], [99, -99]]))).all()


def test_options_are_checked():
    with pytest.raises(ValueError, match="prior_strength must be greater than 0, got 0"):
        bbq.fit(*problem(), prior_strength=0)
