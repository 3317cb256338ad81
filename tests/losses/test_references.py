"""Every objective equals its reference, in value and gradient, with its options and defaults."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks, references
from .references import probabilities

STATEFUL = ("adaptive_focal", "class_adaptive_margin", "class_counts", "recall")
REFERENCES = dict(references.REFERENCES)
for file in STATEFUL:
    REFERENCES |= importlib.import_module(f".test_{file}", __package__).REFERENCES


def test_every_objective_has_a_reference():
    assert set(losses.catalogue()) == REFERENCES.keys()


CASES = [
    *((name, {}) for name in references.REFERENCES if name not in ("neighbour_margin", "soft_ece")),
    *((name, {"gamma": gamma}) for name in ("focal", "inverse_focal") for gamma in (0.0, 0.5)),
    *((name, {"weighting": "gradient"}) for name in ("focal", "inverse_focal", "flsd53")),
    *(
        (name, {"gamma": gamma, "beta": beta})
        for name in ("bsce", "bsce_gra")
        for gamma, beta in ((0.0, 2.0), (0.5, 1.0), (1.0, 3.0))
    ),
    *(("bsce", {"gamma": gamma, "reading": "sum"}) for gamma in (0.0, 1.5)),
    ("bsce_adaptive_gra", {"beta": 1.0, "gammas": (5.0, 3.0, 2.0)}),
    *(
        ("dual_focal", {"runner_up": kind, "gamma": gamma})
        for kind, gamma in (("below", 0.5), ("wrong", 1.0), ("second", 5.0))
    ),
    *(
        ("dual_focal", {"runner_up": kind, "detach_runner_up": True, "gamma": 2.0})
        for kind in ("below", "wrong", "second")
    ),
    *(
        ("label_smoothing", {"alpha": alpha, "spread": spread})
        for alpha, spread in ((0.0, "others"), (0.5, "others"), (0.1, "all"))
    ),
    ("entropy_regularized", {"scale": 0.3, "gamma": 2.5}),
    ("focal_entropy_regularized", {"focal_gamma": 1.0, "scale": 0.3, "gamma": 1.0}),
    *(
        ("margin_smoothing", {"margin": 1.5, "alpha": 0.7, "class_reduction": reduction})
        for reduction in ("mean", "sum")
    ),
    ("max_suppression", {"alpha": 2.0}),
    ("logit_norm", {"tau": 1.0}),
    ("dca", {"scale": 2.5}),
    ("mdca", {"scale": 3.0, "focal_gamma": 1.0}),
    ("esd", {"scale": 4.0}),
    ("mmce", {"scale": 0.5, "bandwidth": 0.1}),
    ("mmce_weighted", {"double_normalization": True, "bandwidth": 0.1}),
    *((name, {"scale": 2.0, "cross_entropy_scale": 0.5}) for name in ("lovasz", "soft_iou")),
    ("ohem", {"fraction": 0.25}),
    ("bootstrapped", {"count": 3.0}),
    *(("adafocal", options) for options in ({}, {"num_bins": 7, "gamma_initial": 3.0})),
    *((name, {}) for name in ("flsc531", "flsc532", "recall", "recall_precision")),
    ("recall", {"normalized": True}),
    ("recall_precision", {"floor": 1e-3}),
    *(("class_adaptive_margin", {"penalty": penalty}) for penalty in ("phr", "p2", "p3")),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_value_and_gradient(name, options):
    checks.check_objective(name, REFERENCES[name], **options)


@pytest.mark.parametrize(
    ("step", "rtol", "options"),
    [
        (1e-7, 1e-5, {"scale": 0.5, "cross_entropy_scale": 0.0}),
        (1e-6, 1e-6, {"num_bins": 7, "rank_sharpness": 20.0, "bin_temperature": 0.05}),
    ],
)
def test_soft_ece(step, rtol, options):
    checks.check_objective("soft_ece", REFERENCES["soft_ece"], step=step, rtol=rtol, **options)


@pytest.mark.parametrize("weighting", ["loss", "gradient"])
def test_thresholds_of_flsd(weighting):
    options = {"thresholds": (0.3, 0.7), "gammas": (4.0, 1.5, 0.0), "weighting": weighting}
    run = lambda z, y: losses.flsd(z, y, **options)  # noqa: E731
    checks.check(run, references.flsd, *checks.batch(32), **options)
    # Two equal logits give p_y = 1/2 exactly, and a threshold belongs to the stage above.
    value = losses.flsd(np.zeros((1, 2), np.float32), np.array([0]), gammas=(5.0, 3.0, 1.0))
    np.testing.assert_allclose(value, 0.5 * np.log(2), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 4, 5), {"distance": "l2", "alpha": 0.5, "kernel_size": 5}),
        ((1, 3, 2, 3), {"alpha": 1.0}),
    ],
)
def test_neighbour_margin(shape, options):
    random = np.random.default_rng(0)
    logits, labels = random.standard_normal((*shape, 3)), random.integers(3, size=shape)
    objective = losses.objective("neighbour_margin", **options)
    checks.check(
        lambda z, y: objective.value((), z, y, None),
        references.neighbour_margin,
        logits,
        labels,
        step=1e-6,
        **options,
    )
    weights = np.where(np.arange(labels.size).reshape(shape) % 7 == 2, 0.0, 1.0)
    void = np.where(weights == 0, 255, labels)
    given = np.where(weights[..., None] == 0, np.nan, logits).astype(np.float32)
    expected = references.neighbour_margin(logits, labels, weights=weights, **options) * weights

    @jax.jit
    def terms_and_gradient(z):
        terms, pull_back = jax.vjp(lambda z: objective.value((), z, void, weights), z)
        return terms, pull_back(jnp.ones_like(terms))[0]

    terms, gradient = terms_and_gradient(given)
    np.testing.assert_allclose(terms, expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(gradient).all()
    assert not np.any(np.asarray(gradient)[weights == 0])


# --------------------------------------------------------------------------------------------
# Inputs for which float32 rounds.


@pytest.mark.parametrize(("backend", "num_rows"), [("cpu", 128), ("tpu", 129)])
def test_penalties_by_a_sort_and_by_pairs(monkeypatch, backend, num_rows):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    logits, labels = checks.batch(num_rows, num_classes=4)
    logits[3:9], logits[9:12] = logits[2], logits[1]
    expected = {
        losses.mmce_penalty: references.mmce(logits, labels),
        losses.mmce_weighted_penalty: references.mmce_weighted(logits, labels),
    }
    p = probabilities(logits, labels)
    expected[losses.esd_penalty] = references.pairs(p.top, p.predicted == labels, p.top)
    assert losses.esd_penalty(logits[:2], labels[:2]) == 0
    for penalty, value in expected.items():
        of = jnp.asarray(logits, jnp.float32)
        np.testing.assert_allclose(penalty(of, labels), value, rtol=1e-4, atol=1e-7)


def test_confidences_that_round_to_1_keep_their_order_in_esd():
    random = np.random.default_rng(0)
    logits = 40 * random.standard_normal((64, 3)).astype(np.float32)
    labels = random.integers(3, size=64)
    p = probabilities(logits.astype(float), labels)
    order = np.max(logits, -1) - np.sort(logits, -1)[:, -2]
    assert len(np.unique(p.top.astype(np.float32))) < 60 < len(np.unique(order))
    expected = references.pairs(p.top, p.predicted == labels, order)
    np.testing.assert_allclose(losses.esd_penalty(logits, labels), expected, rtol=1e-4)


@pytest.mark.parametrize("bandwidth", [0.01, 1e-30])
def test_a_narrow_kernel_and_ties_of_mmce(bandwidth):
    """For equal rows the kernel is 1: the value is the square of the mean error."""
    logits = np.tile(np.float32([2, 0]), (100, 1))
    labels = np.repeat([0, 1], [60, 40])
    confidence = 1 / (1 + np.exp(-2.0))
    error = 0.6 - confidence
    run = jax.jit(jax.value_and_grad(losses.mmce_penalty))
    value, gradient = run(logits, labels, bandwidth=bandwidth)
    np.testing.assert_allclose(value, error**2, rtol=1e-4)
    slope = -2 * error / 100 * confidence * (1 - confidence)
    np.testing.assert_allclose(gradient, np.tile([slope, -slope], (100, 1)), rtol=1e-4)


def test_mmce_of_many_rows_has_the_same_kernel():
    """The product of factors near 1 was rounded: the value of two million rows was 0.6 % off."""
    confidences = [0.5 + (np.arange(size) + 0.5) / size / 2 for size in (2**10, 2**17)]
    few, many = (np.stack([np.log(c / (1 - c)), 0 * c], axis=1) for c in confidences)
    expected = references.mmce(few, np.ones(len(few), int))
    actual = losses.mmce_penalty(np.float32(many), np.ones(len(many), int))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("penalty", [losses.mmce_penalty, losses.mmce_weighted_penalty])
def test_rounding_makes_no_squared_norm_negative(penalty):
    random = np.random.default_rng(0)
    run = jax.jit(jax.value_and_grad(penalty))
    for _ in range(10):
        logits = 1e-6 * random.standard_normal((64, 2)).astype(np.float32)
        value, gradient = run(logits, random.integers(2, size=64))
        assert value >= 0
        assert np.isfinite(gradient).all()


def test_a_factor_of_the_logits_does_not_change_logit_norm():
    logits, labels = checks.batch(num_classes=4)
    logits = logits.astype(np.float32)
    expected = losses.logit_norm(logits, labels)
    for factor in (1e-2, 1e4, 1e25):
        actual = losses.logit_norm(np.float32(factor) * logits, labels)
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=1e-5)
    slope = jax.grad(lambda z: losses.logit_norm(z, 0, tau=0.5))(jnp.zeros(4))
    np.testing.assert_allclose(slope, (0.25 - np.eye(4)[0]) / (0.5 * 1e-7), rtol=1e-5)
    wider = np.insert(logits, 4, -np.inf, axis=1)
    np.testing.assert_allclose(losses.logit_norm(wider, labels), expected, rtol=1e-6)


@pytest.mark.parametrize("spread", ["others", "all"])
def test_huge_logits_do_not_overflow_in_label_smoothing(spread):
    logits = jnp.array([[3e38, 0.0, -3e38]])
    value = losses.label_smoothing(logits / 10, jnp.array([0]), alpha=0.3, spread=spread)
    assert np.isfinite(value)
    plain = losses.label_smoothing(jnp.array([[1.0, -jnp.inf]]), jnp.array([0]), alpha=0.0)
    assert plain < 1e-30


@pytest.mark.parametrize("name", ["mdca_penalty", "soft_iou_penalty"])
def test_penalties_of_classes_at_the_extremes(name):
    penalty, labels = getattr(losses, name), np.array([0, 1])
    far = [np.tile(np.float32([gap, 0, 0, 0]), (2, 1)) for gap in (80, 120, 1e9)]
    value, *others = (penalty(logits, labels) for logits in far)
    np.testing.assert_allclose(value, {"mdca_penalty": 0.25, "soft_iou_penalty": 7 / 8}[name])
    np.testing.assert_allclose(others, value, rtol=1e-6)
    masked = np.where(np.arange(4) < 3, far[0], -np.inf)
    np.testing.assert_allclose(penalty(masked, labels), penalty(far[0][:, :3], labels), rtol=1e-6)
    # One row of weight 2^25, and many others that one float32 sum would lose.
    random = np.random.default_rng(0)
    labels = random.integers(3, size=2**17 + 7)
    logits = random.standard_normal((len(labels), 3)) + 2 * np.eye(3)[labels]
    weights = np.ones(len(labels))
    weights[0] = 2**25
    value = penalty(np.float32(logits), labels, np.float32(weights))
    with jax.enable_x64(True):
        np.testing.assert_allclose(value, penalty(logits, labels, weights), rtol=5e-5)


# --------------------------------------------------------------------------------------------
# Images.

PER_IMAGE = {"lovasz_penalty": references.extension, "soft_iou_penalty": references.penalty}


@pytest.mark.parametrize("name", PER_IMAGE)
def test_per_image_is_the_mean_over_the_images_that_have_a_label(name):
    logits, labels = checks.batch(18)
    logits, labels = logits.reshape(3, 6, 5), labels.reshape(3, 6)
    weights = np.ones((3, 6))
    weights[1], weights[2, :2] = 0, 0
    value = getattr(losses, name)(logits, labels, weights, per_image=True)
    of_image = PER_IMAGE[name]
    expected = (of_image(logits[0], labels[0]) + of_image(logits[2, 2:], labels[2, 2:])) / 2
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_hard_predictions_give_the_mean_jaccard_loss():
    """IoU 1/3, 2/3 and 0 by hand, of the classes 0, 1 and 2; class 3 does not occur.

    In the first two rows, one of which is right, class 0 alone occurs.
    """
    labels, predicted = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 0])
    logits = 1e3 * np.eye(4)[predicted]
    value = losses.lovasz_penalty(logits, labels)
    np.testing.assert_allclose(value, 1 - (1 / 3 + 2 / 3 + 0) / 3, rtol=1e-6)
    np.testing.assert_allclose(losses.lovasz_penalty(logits[:2], labels[:2]), 1 / 2, rtol=1e-6)


def test_equal_losses_share_and_weights_are_copies():
    """Losses log 2 three times and log 4 once: of 2 kept, the others have a third of one each."""
    logits = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [np.log(3.0), 0.0]])
    labels = np.array([0, 1, 0, 1])

    @jax.jit
    def value(fraction, logits, labels, weights):
        return losses.objective("ohem", fraction=fraction).value((), logits, labels, weights)

    terms = value(0.5, logits, labels, None)
    np.testing.assert_allclose(terms, [2 / 3 * np.log(2)] * 3 + [2 * np.log(4)], rtol=1e-6)
    weighted = value(0.5, logits[[0, 3]], labels[[0, 3]], np.array([3.0, 1.0]))
    np.testing.assert_allclose(weighted, terms[np.array([0, 3])], rtol=1e-6)
    whole = value(1.0, logits, labels, None)
    np.testing.assert_allclose(whole, losses.cross_entropy(logits, labels), rtol=1e-6)


def test_bootstrapped_per_image():
    """Check the mean over images, of which one has fewer pixels than are kept and one has none."""
    logits, labels = checks.batch(18)
    cross_entropy = probabilities(logits, labels).cross_entropy.reshape(3, 6)
    logits, labels = logits.reshape(3, 6, 5), labels.reshape(3, 6)
    weights = np.ones((3, 6), np.float32)
    weights[1], weights[2, :4] = 0, 0
    objective = losses.objective("bootstrapped", count=3, per_image=True)
    expected = (np.sort(cross_entropy[0])[3:].mean() + cross_entropy[2, 4:].mean()) / 2
    terms = jax.jit(objective.value)((), logits, labels, weights)
    np.testing.assert_allclose(np.sum(terms * weights) / 8, expected, rtol=1e-5)


# --------------------------------------------------------------------------------------------
# Functions beside the losses.


@pytest.mark.parametrize("gamma", [1.0, 3.0, 5.0])
def test_gradient_ratio(gamma):
    """The focal gradient over that of cross-entropy, from differences of the loss in p."""
    p = np.linspace(0.05, 0.95, 19)
    step = 1e-6 * p
    values = [-((1 - q) ** gamma) * np.log(q) for q in (p + step, p - step)]
    expected = -p * (values[0] - values[1]) / (2 * step)
    ratio = losses.focal_gradient_ratio(p, gamma)
    np.testing.assert_allclose(ratio, expected, rtol=1e-4, atol=1e-6)
    ends = losses.focal_gradient_ratio(
        np.array([0.0, 1.0, 0.0, 1.0, 1.5, np.nan]), np.array([gamma] * 2 + [0] * 2 + [gamma] * 2)
    )
    np.testing.assert_array_equal(ends, [1, 0, 1, 1, np.nan, np.nan])


def test_a_wrong_answer_beyond_all_digits_keeps_both_slopes():
    """Check (p - e_y) times the squared norm of (1, -1, 0), where log p_y is -1e8."""
    slope = jax.grad(
        lambda z: jnp.sum(losses.generalized_brier(z, jnp.array([0]), weighting="loss"))
    )
    gradient = slope(jnp.array([[-1e8, 0.0, -3e8]]))
    np.testing.assert_allclose(gradient, [[-2.0, 2.0, 0.0]], rtol=1e-6)
