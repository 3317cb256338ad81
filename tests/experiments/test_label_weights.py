"""Labels of weight 0 are absent from tables and comparisons, whatever the files hold for them."""

import numpy as np
import pytest

from experiments.evaluation import finished
from tests.experiments.test_compare import CLASSES, EXAMPLES, leave, stored

LENGTH = 5


def by_sentence(folder, *, void=-1):
    """Rewrite predictions as sentences of tokens, of which a fifth has no label."""
    for part in ("validation", "test"):
        logits, labels = stored(folder, part)
        shape = (EXAMPLES // LENGTH, LENGTH)
        weights = np.random.default_rng(0).choice([0, 1, 1, 2, 1], size=shape)
        arrays = {
            "logits": logits.reshape(*shape, CLASSES).astype(np.float32),
            "labels": np.where(weights == 0, void, labels.reshape(shape)),
            "weights": weights.astype(np.float32),
        }
        np.savez(folder / f"predictions_{part}.npz", **arrays)
    return folder


def test_weights_that_differ_are_refused_and_void_labels_are_not(tmp_path):
    first = by_sentence(leave(tmp_path / "first", 1))
    other = by_sentence(leave(tmp_path / "other", 1), void=255)
    finished.read([str(first), str(other)])
    with np.load(other / "predictions_test.npz") as arrays:
        changed = dict(arrays)
    place = tuple(np.argwhere(changed["weights"] > 0)[7])
    changed["weights"][place] = 3
    np.savez(other / "predictions_test.npz", **changed)
    message = f"differ in the weights of their test labels, first of example {place[0]}"
    with pytest.raises(ValueError, match=message):
        finished.read([str(first), str(other)])
