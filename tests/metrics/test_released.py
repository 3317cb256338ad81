"""The MMCE script beyond what was recorded of it; the recordings are in test_golden.py."""

import numpy as np

from calib_jax import metrics


def test_a_confidence_of_one_is_in_the_last_bin():
    """An inverse temperature of 8 leaves nothing of 1e-5."""
    p = np.asarray([[1.0, 0.0], [0.6, 0.4]], np.float32)
    actual = metrics.mmce_script(p, np.asarray([0, 1]), inverse_temperature=8, num_bins=10)
    # 0.6^8 / (0.6^8 + 0.4^8) = 0.9624: in the same bin.
    np.testing.assert_array_equal(actual.weight, [0] * 9 + [2, 0])
    np.testing.assert_allclose(actual.accuracy[9], 1 / (2 + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(actual.confidence[9], (1 + 0.9624) / (2 + 1e-5), rtol=1e-4)
