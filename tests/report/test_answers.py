"""The answer above a report: its numbers by hand, its words by the sign and the size of the gap."""

import numpy as np
import pytest
from scipy.special import softmax

from calib_jax import report

METRICS = ["error", "ece", "signed_gap"]


@pytest.fixture(scope="module")
def examples():
    """Labels drawn from the softmax of the logits, which are calibrated."""
    random = np.random.default_rng(3)
    logits = 2 * random.normal(size=(1500, 4)).astype(np.float32)
    p = softmax(logits, axis=1)
    labels = (random.random((1500, 1)) > np.cumsum(p, axis=1)[:, :-1]).sum(axis=1)
    return logits, labels


@pytest.fixture(scope="module")
def scored(examples):
    logits, labels = examples
    return report.score(
        3 * logits[500:],
        labels[500:],
        name="sure",
        compare={"vague": 0.4 * logits[500:], "calibrated": logits[500:]},
        calibrate="temperature",
        fit_on={"sure": (3 * logits[:500], labels[:500])},
        metrics=METRICS,
        num_resamples=200,
    )


def test_what_is_stated_and_what_is_right(scored, examples):
    logits, labels = examples
    right = np.mean(logits[500:].argmax(axis=1) == labels[500:])
    sure, vague, calibrated = scored.answers[:3]
    for line, scale, words in (
        (sure, 3.0, "too sure by"),
        (vague, 0.4, "not sure enough by"),
        (calibrated, 1.0, "as sure as right on average"),
    ):
        stated = np.mean(softmax(scale * logits[500:], axis=1).max(axis=1))
        assert f"{100 * stated:.1f} % stated, {100 * right:.1f} % right: {words}" in line
    gap = next(
        row for row in scored.rows if (row.metric, row.predictions) == ("signed_gap", "sure")
    )
    assert f"too sure by {100 * gap.value:.1f} points [{100 * gap.low:.1f}," in sure
    assert "With temperature " in sure
    assert "temperature" not in vague + calibrated
    assert str(scored).startswith("\n".join(scored.answers))


def test_differences_are_named_only_where_they_are_shown(scored):
    sure_vague, sure_calibrated = scored.answers[3:]
    assert sure_vague.startswith("vague against sure: error not shown to differ (p = 1.000); ece ")
    change = next(c for c in scored.changes if (c.metric, c.after) == ("ece", "calibrated"))
    assert change.low < change.high < 0
    assert (
        f"ece {-100 * change.value:.1f} points lower [{-100 * change.high:.1f}," in sure_calibrated
    )


def test_without_the_metric_there_is_a_number_and_no_claim(examples):
    logits, labels = examples
    (line,) = report.score(
        3 * logits[500:], labels[500:], metrics=["error"], num_resamples=20
    ).answers
    assert line.endswith("points more stated than right.")
    assert "sure" not in line
