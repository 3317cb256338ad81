"""Stated confidences: pairs (confidence, correct) in place of logits and labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import inference, losses, metrics

from . import assert_same

# Metrics that read the confidence of the prediction and whether it is right, and nothing else.
OF_TOP_LABEL = [
    *("accuracy", "error", "mean_confidence", "sharpness", "signed_gap", "confident_set"),
    *(
        "ece",
        "adaptive_ece",
        "mce",
        "adaptive_mce",
        "average_calibration_error",
        "rms_calibration_error",
    ),
    *("overconfidence", "underconfidence", "debiased_rms_calibration_error"),
    *("adaptive_debiased_rms_calibration_error", "brier_decomposition", "reliability"),
    *("adaptive_reliability", "ks_error", "ecce", "smooth_ece", "augrc", "aurc", "excess_aurc"),
    *("confidence_auroc", "risk_at_coverage", "selective_accuracy", "coverage_at_risk"),
]


def answers(seed=0, n=400):
    """Answers stated at .05 to .95, half of them below .5, and too sure."""
    rng = np.random.default_rng(seed)
    # Between hundredths: no confidence is at the edge of a bin, where rounding changes the bin.
    confidence = np.float32(np.round(rng.uniform(0.05, 0.94, n), 2) + 0.003)
    return confidence, rng.random(n) < 0.8 * confidence


def among_classes(confidence, correct, num_classes=50):
    """Return logits whose prediction is the answer, at its confidence, and labels."""
    rest = (1 - confidence) / (num_classes - 1)
    p = np.repeat(rest[:, None], num_classes, axis=1)
    p[:, 0] = confidence
    return jnp.log(jnp.asarray(p, jnp.float32)), jnp.asarray(np.where(correct, 0, 7))


def test_every_metric_of_the_top_label_is_that_of_an_answer_among_many_classes():
    """With 50 classes the answer is the prediction also where it is stated at .05."""
    pair = answers()
    several = {name: metrics.named(name) for name in OF_TOP_LABEL}
    wanted = metrics.values_of(several, *among_classes(*pair))
    actual = metrics.values_of(several, metrics.Stated(*pair))
    for name in OF_TOP_LABEL:
        assert_same(actual[name], wanted[name], rtol=1e-4, atol=1e-5)


def test_values_in_float64():
    confidence, correct = answers(1)
    stated = metrics.Stated(confidence, correct)
    c, a = confidence.astype(np.float64), correct.astype(np.float64)
    wanted = {
        "brier": np.mean((c - a) ** 2),
        "ranked_probability_score": np.mean((c - a) ** 2),
        "mean_entropy": -np.mean(c * np.log(c) + (1 - c) * np.log(1 - c)),
        "auroc": np.mean(
            (c[correct][:, None] > c[~correct]) + (c[correct][:, None] == c[~correct]) / 2
        ),
    }
    actual = metrics.values_of({name: metrics.named(name) for name in wanted}, stated)
    for name, value in wanted.items():
        np.testing.assert_allclose(actual[name], value, rtol=2e-6, err_msg=name)
    refined = metrics.refinement_brier(stated) + metrics.calibration_brier(stated)
    np.testing.assert_allclose(refined, wanted["brier"], rtol=1e-5)


def test_answers_below_one_half_are_not_folded():
    """Stated at .7 and .3, right in 50 and 10 %: too sure by 20 points everywhere."""
    confidence = np.repeat([0.7, 0.3], 2000)
    correct = np.concatenate([np.arange(2000) < 1000, np.arange(2000) < 200])
    stated = metrics.Stated(confidence, correct)
    for metric in (metrics.ece, metrics.signed_gap, metrics.ks_error, metrics.overconfidence):
        np.testing.assert_allclose(metric(stated), 0.2, rtol=1e-4)
    assert inference.calibration_test("kuiper", stated).p_value < 1e-6
    bound = inference.noise_bound(metrics.ece, stated, key=jax.random.key(0))
    assert bound.low < 0.2 < bound.high
    assert bound.p_value < 0.01


def test_wrong_answers_are_refused():
    stated = metrics.Stated([0.5, 0.2], [1, 0])
    with pytest.raises(TypeError, match="excluded_class needs classes"):
        metrics.ece(stated, excluded_class=1)
    with pytest.raises(TypeError):
        losses.focal(stated, np.array([0, 1]))
    with pytest.raises(ValueError, match="converts the one logit of a binary model"):
        metrics.ece(np.array([[2.0], [-3.0]]), np.array([0, 1]))
