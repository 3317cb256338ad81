"""Sets of other inputs by name: what is found, and what does not fit."""

import numpy as np
import pytest

from calib_jax import data
from experiments import outside


def test_names_and_options():
    own = data.named("digits")
    found = outside.named(["gaussian_noise:severity=2", "digits:seed=3"], own, None)
    assert list(found) == ["gaussian_noise_severity_2", "digits_seed_3"]
    noise, other = (source.inputs for source in found.values())
    assert noise.shape == own.test.inputs.shape
    # Digits have 17 shades, so the noise is measured on their scale.
    same = (own.test.inputs > 4) & (own.test.inputs < 12)
    change = (noise[same].astype(float) - own.test.inputs[same] + 0.5) / 16
    assert np.std(change) == pytest.approx(np.hypot(0.06, 1 / 16 / 12**0.5), rel=0.05)
    np.testing.assert_array_equal(other, data.named("digits", seed=3).test.inputs)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("svnh", "no out-of-distribution set is called 'svnh'"),
        ("gaussians", r"compared with digits: its inputs are float32 of shape \(2,\), not uint8"),
        ("gaussian_noise:3", "must look like NAME or NAME:key=value"),
        ("gaussian_noise:severity=9", "severity must lie in"),
        ("gaussian_noise:severty=3", "did you mean 'severity'"),
        ("gaussian_noise:severity=2.5", "severity of gaussian_noise must be a whole number, got 2"),
        ("gaussian_noise:seed=-1", "seed must be at least 0"),
        ("digits:seed=fog", "seed of digits must be a whole number, got 'fog'"),
    ],
)
def test_refusals(asked, message):
    with pytest.raises((ValueError, TypeError), match=message):
        outside.named([asked], data.named("digits"), None)
    with pytest.raises(ValueError, match="needs images, and gaussians has none"):
        outside.named(["gaussian_noise"], data.named("gaussians"), None)
