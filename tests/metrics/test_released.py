"""The MMCE script beyond what was recorded of it; the recordings are in test_golden.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics


def test_a_confidence_of_one_is_in_the_last_bin():
    """An inverse temperature of 8 leaves nothing of 1e-5."""
    p = np.asarray([[1.0, 0.0], [0.6, 0.4]], np.float32)
    actual = metrics.mmce_script(p, np.asarray([0, 1]), inverse_temperature=8, num_bins=10)
    # 0.6^8 / (0.6^8 + 0.4^8) = 0.9624: in the same bin.
    np.testing.assert_array_equal(actual.weight, [0] * 9 + [2, 0])
    np.testing.assert_allclose(actual.accuracy[9], 1 / (2 + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(actual.confidence[9], (1 + 0.9624) / (2 + 1e-5), rtol=1e-4)


@pytest.mark.parametrize("inverse", [0.5, 2.0])
def test_the_inverse_temperature_is_one_over_a_temperature(inverse):
    logits = np.asarray([[1.0, 0.0, -1.0]], np.float32)
    p = np.exp(logits) / np.exp(logits).sum()
    actual = metrics.inverse_temperature(jnp.asarray(p), inverse)
    # Up to a constant and to the 1e-5.
    np.testing.assert_allclose(actual - actual[:, :1], inverse * (logits - 1), atol=5e-4)
    assert actual.shape == p.shape
