"""Labels of weight 0 are absent from tables and comparisons, whatever the files hold for them."""

import numpy as np
import pytest

from calib_jax import calibrators, metrics
from experiments.reports import comparison, summary
from experiments.running import finished
from tests.experiments.test_compare import BINS, CLASSES, EXAMPLES, compared, leave, stored

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


def present(folder, part):
    with np.load(folder / f"predictions_{part}.npz") as arrays:
        counts = arrays["weights"] > 0
        return tuple(arrays[name][counts] for name in ("logits", "labels", "weights"))


@pytest.mark.slow
def test_a_comparison_sees_the_labels_that_have_weight(tmp_path):
    folders = [by_sentence(leave(tmp_path / name, n)) for n, name in enumerate("ab")]
    result = compared(*folders)
    (part,) = result.parts
    metric = metrics.ece.with_options(num_bins=BINS)
    for folder in folders:
        fit = calibrators.temperature.fit(*present(folder, "validation"))
        (temperature,) = part.summary.temperatures[summary.AFTER][folder.name]
        assert temperature == pytest.approx(float(fit.temperature), rel=1e-5)
        logits, labels, weights = present(folder, "test")
        for phase, z in (
            (summary.BEFORE, logits),
            (summary.AFTER, calibrators.temperature.apply(fit, logits)),
        ):
            cells = {
                c.metric: c for c in part.summary.cells if (c.loss, c.phase) == (folder.name, phase)
            }
            assert cells["ece"].value == pytest.approx(float(metric(z, labels, weights)), abs=1e-5)
            hits = np.average(np.argmax(z, axis=-1) != labels, weights=weights)
            assert cells["error"].value == pytest.approx(hits, abs=1e-6)
            table = part.summary.reliability[phase][folder.name]
            assert float(np.sum(table.weight)) == pytest.approx(weights.sum(), rel=1e-5)
    assert comparison.records(result)


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
