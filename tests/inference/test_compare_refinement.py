"""Differences of the parts of the NLL between two models: references, laws, size, power."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from calib_jax import inference, metrics

from .simulations import simulated, softmax


def losses(logits, labels, b):
    return -np.log(softmax(b * logits)[np.arange(len(labels)), labels])


def fit(logits, labels):
    def mean(x):
        return losses(logits, labels, math.exp(x)).mean()

    return math.exp(optimize.minimize_scalar(mean, bounds=(-4, 4), method="bounded").x)


def two_models(num_rows=300, sharpness=(1.0, 1.3), seed=0):
    random = np.random.default_rng(seed)
    z, labels, _ = simulated(random, num_rows, 3)
    noise = random.standard_normal(z.shape)
    return (
        (sharpness[0] * z).astype(np.float32),
        (sharpness[1] * z + noise).astype(np.float32),
        labels,
    )


@pytest.mark.parametrize("sharpness", [(1.0, 1.3), (2.0, 0.6)])
def test_a_reference_with_scipy(sharpness):
    """The test statistics in float64, with the variance of s by deleting one example at a time."""
    *models, labels = two_models(100, sharpness)
    parts, refined, roots = [], [], []
    for logits in (model.astype(float) for model in models):
        keep = ~np.eye(100, dtype=bool)
        others = np.array([fit(logits[k], labels[k]) for k in keep])[:, None]
        refined.append(losses(logits, labels, others))
        parts.append(losses(logits, labels, 1) - refined[-1])

        def root(rows, logits=logits):
            z, y = logits[rows], labels[rows]
            b = fit(z, y)
            removed = losses(z, y, 1).mean() - losses(z, y, b).mean()
            return math.copysign(math.sqrt(2 * removed), 1 - b)

        roots.append([root(np.arange(100)), *(root(k) for k in keep)])
        assert abs(roots[-1][0]) > 1e-3
    change = inference.compare_refinement(*models, labels)
    difference = refined[1] - refined[0]
    assert change.refinement.value == pytest.approx(difference.mean(), abs=2e-3)
    z = difference.mean() / (difference.std() / 10)
    assert change.refinement.p_value == pytest.approx(2 * stats.norm.sf(abs(z)), abs=0.05)
    assert change.calibration.value == pytest.approx(np.mean(parts[1] - parts[0]), abs=2e-3)
    p_values = []
    for sign in (1, -1):
        whole, *without = np.array(roots[1]) - sign * np.array(roots[0])
        deviation = math.sqrt(99 / 100 * np.sum((without - np.mean(without)) ** 2))
        p_values.append(2 * stats.norm.sf(abs(whole) / deviation))
    assert change.calibration.p_value == pytest.approx(max(p_values), abs=0.05)
    before = losses(models[1].astype(float), labels, 1) - losses(models[0].astype(float), labels, 1)
    assert change.nll.value == pytest.approx(before.mean(), abs=1e-5)
    z = before.mean() / (before.std(ddof=1) / 10)
    assert change.nll.p_value == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-3)


def test_parts_add_up_and_agree_with_the_metrics():
    a, b, labels = two_models()
    change = inference.compare_refinement(a, b, labels)
    assert change.nll.value == pytest.approx(change.refinement.value + change.calibration.value)
    for name, part in (
        ("refinement_nll", change.refinement),
        ("calibration_nll", change.calibration),
    ):
        metric = metrics.named(name)
        assert part.value == pytest.approx(float(metric(b, labels) - metric(a, labels)), abs=1e-4)
        assert part.low <= part.value <= part.high


def test_equal_models_and_models_of_another_temperature():
    a, _, labels = two_models()
    same = inference.compare_refinement(a, a, labels)
    assert [part.p_value for part in same] == [1, 1, 1]
    warmer = inference.compare_refinement(a, 3 * a, labels)
    assert warmer.refinement.p_value == 1  # a temperature cannot change what remains
    assert warmer.refinement.value == 0
    assert warmer.calibration.p_value < 1e-3
    assert warmer.calibration.low > 0


def test_the_interval_excludes_0_where_the_p_value_is_small():
    for seed in range(12):
        a, b, labels = two_models(300, (1.0, 1.3 if seed % 2 else 1.0), seed)
        part = inference.compare_refinement(a, b, labels).calibration
        if abs(part.p_value - 0.1) > 0.002:
            assert (part.low > 0 or part.high < 0) == (part.p_value < 0.1)


def test_laws_of_rows_weights_and_clusters():
    a, b, labels = two_models()
    order = np.random.default_rng(1).permutation(300)
    counts = np.where(np.arange(300) < 150, 2, 0)
    copies = np.repeat(np.arange(150), 2)
    compare = inference.compare_refinement
    whole, moved = compare(a, b, labels), compare(a[order], b[order], labels[order])
    np.testing.assert_allclose(moved, whole, rtol=1e-3, atol=1e-6)
    weighted = compare(a, b, labels, counts)
    np.testing.assert_allclose(weighted, compare(a[copies], b[copies], labels[copies]), rtol=1e-3)
    np.testing.assert_allclose(compare(a, b, labels, clusters=np.arange(300)), whole, rtol=1e-6)
    # Copies in one cluster are one example each, but a temperature of the others is not.
    half = compare(a[:150], b[:150], labels[:150])
    paired = compare(a, b, labels, counts, clusters=np.arange(300))
    assert paired.nll.p_value == pytest.approx(half.nll.p_value, rel=1e-3)
    assert paired.calibration.p_value == pytest.approx(half.calibration.p_value, rel=1e-3)


def test_bad_input():
    a, b, labels = two_models()
    compare = inference.compare_refinement
    with pytest.raises(ValueError, match="need labels of shape"):
        compare(a, b[:200], labels)
    with pytest.raises(ValueError, match="weights are not integers"):
        compare(a, b, labels, np.full(300, 0.5))
    with pytest.raises(ValueError, match="clusters must have shape"):
        compare(a, b, labels, clusters=np.arange(3))
    right = 3 * jnp.eye(3)[labels]
    impossible = np.where(np.eye(3)[labels] * (np.arange(300) == 0)[:, None], -np.inf, a)
    change = compare(impossible, impossible, labels)  # both NLLs are infinite, and the split NaN
    assert np.isnan([*change.nll, *change.refinement, *change.calibration]).all()
    assert compare(a, impossible, labels).nll.value == np.inf
    change = compare(right, b, labels)  # no temperature is the best
    assert np.isnan(change.calibration).all()
    assert np.isnan(change.refinement).all()
    assert np.isfinite(change.nll).all()
    few = compare(a, b, labels, clusters=np.arange(300) % 9)
    assert np.isnan([part.p_value for part in few]).all()


def paired_by_folds(a, b, labels):
    """Compute the p-value of a paired test of the calibration parts, with five folds."""
    fold, rows = np.arange(len(labels)) % 5, []
    for logits in (a.astype(float), b.astype(float)):
        part = losses(logits, labels, 1)
        for k in range(5):
            part[fold == k] -= losses(
                logits[fold == k], labels[fold == k], fit(logits[fold != k], labels[fold != k])
            )
        rows.append(part)
    difference = rows[1] - rows[0]
    return 2 * stats.norm.sf(abs(difference.mean()) / difference.std() * len(labels) ** 0.5)


def hidden_state(random, num_rows, num_classes, scales):
    """Return two calibrated models: b averages over one of four states that a sees."""
    shared = 2 * random.standard_normal((num_rows, num_classes)) * scales[0]
    states = random.standard_normal((num_rows, 4, num_classes)) * scales[1]
    p = softmax(shared[:, None] + states)
    seen = p[np.arange(num_rows), random.integers(0, 4, num_rows)]
    labels = (seen.cumsum(-1) < random.random((num_rows, 1))).sum(-1)
    a, b = (np.log(np.maximum(q, 1e-30)).astype(np.float32) for q in (seen, p.mean(1)))
    return a, b, np.minimum(labels, num_classes - 1)


def symmetric(random, num_rows, num_classes, sharpness):
    """Return two models of equal error: each sees one of two hidden states, which are alike."""
    shared = random.standard_normal((num_rows, 1, 1, num_classes))
    states = 2 * random.standard_normal((2, num_rows, 2, num_classes))
    p = softmax(shared + states[0][:, :, None] + states[1][:, None])
    rows, (i, j) = np.arange(num_rows), random.integers(0, 2, (2, num_rows))
    labels = (p[rows, i, j].cumsum(-1) < random.random((num_rows, 1))).sum(-1)
    seen = p.mean(2)[rows, i], p.mean(1)[rows, j]
    a, b = (np.float32(sharpness * np.log(np.maximum(q, 1e-30))) for q in seen)
    return a, b, np.minimum(labels, num_classes - 1)


CASES = {
    "sharp, K = 2 (1/1)": (2, (1, 1), None),
    "sharp, K = 5 (.1/6)": (5, (0.1, 6), None),
    "equal error, 1.15": (5, None, (1.15, 1.15)),
    "equal error, 1.5": (5, None, (1.5, 1.5)),
    "power 1 / 1.15": (5, None, (1, 1.15)),
    "power 1.15 / 1.3": (5, None, (1.15, 1.3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_size_and_power(case, capsys):
    """Check 400 sets of 1,000 rows at 5 %, beside a paired test of five folds."""
    random = np.random.default_rng(3)
    num_classes, scales, sharpness = CASES[case]
    rejected, by_folds, covered, widths = 0, 0, 0, []
    for trial in range(400):
        if scales is not None:
            a, b, labels = hidden_state(random, 1000, num_classes, scales)
        elif sharpness[0] == sharpness[1]:
            a, b, labels = symmetric(random, 1000, num_classes, sharpness[0])
        else:
            z, labels, _ = simulated(random, 1000, num_classes)
            a, b = ((scale * z).astype(np.float32) for scale in sharpness)
        part = inference.compare_refinement(a, b, labels).calibration
        rejected += part.p_value <= 0.05
        covered += part.low <= 0 <= part.high
        widths.append(part.high - part.low)
        if trial < 100:
            by_folds += paired_by_folds(a, b, labels) <= 0.05
    with capsys.disabled():
        print(
            f"\n{case}: rejected {rejected / 400:.4f}, five folds {by_folds / 100:.2f},"
            f" 0 in the 90 % interval {covered / 400:.3f}, width {np.mean(widths):.4f}"
        )
    if case.startswith("power"):
        assert rejected / 400 > by_folds / 100 - 0.1
    else:
        assert rejected / 400 <= 0.083
