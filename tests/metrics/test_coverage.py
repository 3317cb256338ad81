"""Intervals contain the truth as often as they say, on data whose truth is known."""

from calib_jax import metrics
from experiments.benchmarks import coverage

SETTING = {"examples": 500, "classes": 5, "temperature": 1.5, "draws": 1000, "resamples": 200}


def test_intervals_of_means_cover_at_their_nominal_rate():
    """Check accuracy, NLL and Brier score over 1,000 draws, whose standard error is 0.95 %."""
    for row in coverage.coverage(coverage.MEANS, level=0.9, **SETTING):
        assert 0.87 <= row["percentile"] <= 0.93, row
        assert 0.87 <= row["basic"] <= 0.93, row
        # The estimates themselves are of the truth.
        assert abs(row["mean_estimate"] - row["true"]) < 0.01, row


def test_intervals_of_ece_are_biased_as_the_docs_say():
    """Check a calibrated model: the true ECE is 0, and every resampled one is above."""
    setting = {**SETTING, "temperature": 1.0, "draws": 50}
    (row,) = coverage.coverage({"ece": metrics.ece}, level=0.9, **setting)
    assert row["true"] < 1e-3
    assert row["mean_estimate"] > 0.02
    assert row["percentile"] == 0
    assert row["basic"] > row["percentile"]
