"""Temperatures by several criteria, side by side: against NumPy in double precision."""

import numpy as np
import pytest
import scipy.optimize

from calib_jax import report

CRITERIA = ["nll", "ece", "adaptive_ece:0.01"]


def sample(seed, num_rows=60):
    """Return overconfident logits and labels."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.standard_normal((num_rows, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    return (2.5 * logits).astype(np.float32), labels


def log_probabilities(logits, temperature):
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=-1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))


def nll(logits, labels, temperature):
    return -log_probabilities(logits, temperature)[np.arange(len(labels)), labels].mean()


def gaps(logits, labels, temperature):
    """Return confidences, and confidence minus hit."""
    confidence = np.exp(log_probabilities(logits, temperature).max(axis=-1))
    return confidence, confidence - (logits.argmax(axis=-1) == labels)


def ece(logits, labels, temperature):
    confidence, gap = gaps(logits, labels, temperature)
    in_bin = np.ceil(15 * confidence) - 1
    return sum(abs(gap[in_bin == b].sum()) for b in range(15)) / len(labels)


def equal_mass_ece(logits, labels, temperature):
    confidence, gap = gaps(logits, labels, temperature)
    return np.abs(gap[np.argsort(confidence)].reshape(15, -1).mean(axis=-1)).mean()


@pytest.fixture(scope="module")
def scored():
    return report.score(
        *sample(0),
        calibrate="temperature",
        fit_on=sample(1),
        criterion=CRITERIA,
        metrics=["nll", "ece"],
        num_resamples=20,
    )


def test_each_temperature_minimizes_its_criterion(scored):
    logits, labels = sample(1)
    fitted = {name: fit["params"]["temperature"] for name, fit in scored.calibrators.items()}
    best = scipy.optimize.minimize_scalar(
        lambda t: nll(logits, labels, t), bounds=(0.1, 10), method="bounded",
        options={"xatol": 1e-8},
    )  # fmt: skip
    assert fitted["T by nll"] == pytest.approx(best.x, rel=1e-4)
    for name, reference, step in (
        ("T by ece", ece, 0.1),
        ("T by adaptive_ece:0.01", equal_mass_ece, 0.01),
    ):
        grid = np.cumsum(np.full(round(10 / step), step))
        errors = np.array([reference(logits, labels, t) for t in grid])
        place = int(np.argmin(errors))
        assert np.sort(errors)[1] > errors[place] + 1e-6  # rounding does not decide
        assert fitted[name] == pytest.approx(grid[place], rel=1e-6)
    assert len(set(fitted.values())) == 3


def test_refusals():
    data = sample(0)

    def score(criterion, calibrate="temperature"):
        options = {"calibrate": calibrate, "fit_on": sample(1), "criterion": criterion}
        return report.score(*data, metrics=["nll"], num_resamples=2, **options)

    for criterion in (["ece", "ece"], "ece:x", "ece:0", "eec"):
        with pytest.raises(ValueError, match=r"criterion|did you mean"):
            score(criterion)
    with pytest.raises(ValueError, match="criterion='ece' is for a temperature, and 'vector'"):
        score(["nll", "ece"], calibrate="vector")
