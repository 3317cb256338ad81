"""Numbers that no machine can serve are refused in a sentence, at once."""

import jax
import numpy as np
import optax
import pytest

from calib_jax import calibrators, data, inference, losses, metrics, report, train

LOGITS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
LABELS = np.arange(40) % 3
KEY = jax.random.key(0)
MANY = 100_000_000


def test_metrics_with_too_many_bins():
    for name, metric in metrics.catalogue().items():
        if "num_bins" in metric.defaults():
            with pytest.raises(ValueError, match=r"num_bins must lie in \[1, 100000\], got 10{8}"):
                metrics.named(name, num_bins=MANY)(LOGITS, LABELS)


@pytest.mark.parametrize(
    "call",
    [
        lambda: losses.objective("adafocal", num_bins=MANY),
        lambda: calibrators.histogram.fit(LOGITS, LABELS, num_bins=MANY),
        lambda: inference.compare_calibration(LOGITS, LOGITS, LABELS, num_bins=MANY),
        lambda: inference.compare_ece(LOGITS, LOGITS, LABELS, key=KEY, num_bins=MANY),
        lambda: inference.group_errors(LOGITS, LABELS, LABELS, key=KEY, num_bins=MANY),
        lambda: inference.class_errors(LOGITS, LABELS, key=KEY, num_bins=MANY),
        lambda: inference.calibration_test("ece", LOGITS, LABELS, key=KEY, num_bins=MANY),
        lambda: inference.calibration_test("squared_error", LOGITS, LABELS, key=KEY, num_bins=MANY),
        lambda: report.score(LOGITS, LABELS, num_bins=MANY),
    ],
)
def test_functions_with_too_many_bins(call):
    with pytest.raises(ValueError, match=r"num_bins .*100000000|100000000 bins"):
        call()


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_labels_that_number_no_classes(dtype):
    labels = LABELS.astype(dtype)
    labels[3] = 10**9
    message = r"the largest label must lie in \[0, 999999\], got 1000000000"
    with pytest.raises(ValueError, match=message):
        data.from_arrays(LOGITS, labels)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_unsigned_labels_are_those_of_integers(dtype):
    actual = data.from_arrays(LOGITS, LABELS.astype(dtype))
    expected = data.from_arrays(LOGITS, LABELS)
    assert actual.class_names == expected.class_names == ("0", "1", "2")
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(
            getattr(actual, part).labels, getattr(expected, part).labels, err_msg=part
        )


@pytest.mark.parametrize("seed", [2**32, 2**32 + 1, 2**64, -1])
def test_seeds_beyond_32_bits(seed):
    """The keys of 1 and 2^32 + 1 would be equal."""
    objective = losses.objective("focal")
    for call in (
        lambda: report.score(LOGITS, LABELS, seed=seed),
        lambda: report.out_of_distribution(LOGITS, {"a": LOGITS}, seed=seed),
        lambda: train.Plan(num_epochs=1, batch_size=2, seed=seed),
        lambda: train.create({"params": {}}, objective, optax.sgd(0.1), 3, seed),
        lambda: data.from_arrays(LOGITS, LABELS, seed=seed),
        lambda: data.split(40, seed=seed),
    ):
        with pytest.raises((ValueError, TypeError), match="seed must be"):
            call()
