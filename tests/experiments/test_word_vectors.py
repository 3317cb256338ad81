"""Word vectors from a BERT: against NumPy, word by word and without padding."""

import numpy as np
import pytest

from experiments.datasets import word_vectors

BERT = {"words": 60, "width": 6, "depth": 1, "heads": 2, "mlp_width": 8, "places": 20}


def test_components_are_those_of_a_singular_value_decomposition():
    vectors = np.random.default_rng(0).standard_normal((30, 5)) * np.arange(1, 6) + 7
    projected, share = word_vectors.principal_components(vectors, 3)
    centered = vectors - vectors.mean(axis=0)
    left, sizes, right = np.linalg.svd(centered, full_matrices=False)
    signs = [np.sign(row[np.abs(row).argmax()]) for row in right]
    np.testing.assert_allclose(projected, (left * sizes * signs)[:, :3], atol=1e-10)
    assert share == pytest.approx(np.sum(sizes[:3] ** 2) / np.sum(sizes**2))
    negative, _ = word_vectors.principal_components(-vectors, 3)
    np.testing.assert_allclose(negative, -projected, atol=1e-10)
    with pytest.raises(ValueError, match="width must lie in"):
        word_vectors.principal_components(vectors, 6)
