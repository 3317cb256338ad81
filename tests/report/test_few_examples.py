"""The note beside bootstrap intervals that hang on fewer than ten examples."""

import numpy as np
import pytest

from calib_jax import report

NOTE = "Fewer than 10 examples"


def sample(positives, *, errors=100, size=400):
    """Return logits and labels with so many examples of class 1 and so many wrong predictions."""
    random = np.random.default_rng(positives)
    labels = np.arange(size) < positives
    wrong = np.zeros(size, bool)
    wrong[random.permutation(size)[:errors]] = True
    score = (0.5 + random.random(size)) * np.where(labels ^ wrong, 1, -1)
    return np.stack([-score, score], axis=1), labels.astype(int)


def notes(logits, labels, names, **options):
    scored = report.score(logits, labels, metrics=names, num_resamples=20, **options)
    return [line for line in str(scored).splitlines() if line.startswith(NOTE)]


@pytest.mark.parametrize("name", ["auroc", "mean_iou"])
def test_a_class_of_fewer_than_ten_examples_is_named_beside_its_metrics(name):
    (note,) = notes(*sample(9), [name, "nll"])
    assert f"class 1: 9): the bootstrap intervals of {name} are" in note
    assert notes(*sample(10), [name]) == []
    assert notes(*sample(9), ["nll", "ece"]) == []  # nothing shown hangs on the class


@pytest.mark.parametrize("name", ["accuracy", "aurc", "selective_accuracy", "signed_gap"])
def test_few_wrong_or_right_predictions_are_named(name):
    (note,) = notes(*sample(100, errors=9), [name])
    assert f"(wrong predictions of as given: 9): the bootstrap intervals of {name} are" in note
    (note,) = notes(*sample(100, errors=395), [name])
    assert "(right predictions of as given: 5)" in note
    assert notes(*sample(100, errors=10), [name]) == []


@pytest.mark.parametrize("errors", [0, 2, 12])
def test_no_direction_is_claimed_from_few_errors(errors):
    """Of 60 calibrated predictions stated at 97 %, all are right in one set of six."""
    score = np.random.default_rng(0).uniform(3, 4, 60)
    logits, labels = np.stack([0 * score, score], axis=1), (np.arange(60) >= errors).astype(int)
    scored = report.score(logits, labels, metrics=["error", "signed_gap"], num_resamples=20)
    (gap,) = [row for row in scored.rows if row.metric == "signed_gap"]
    assert errors == 2 or not gap.low <= 0 <= gap.high
    claimed = any(words in scored.answers[0] for words in ("too sure", "sure enough", "as sure"))
    assert claimed == (errors == 12)
    warned = f"(wrong predictions of as given: {errors})" in str(scored)
    assert warned == (errors < 10)
