"""Which metrics noise alone raises: a p-value of their differences does not test calibration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics

NUM_CLASSES, NUM_ROWS, FEW = 4, 640, 40


@pytest.fixture(scope="module")
def numbers():
    """Metrics of one number, or of one per class.

    Left out: those whose labels mean in and out of distribution, and the one that compares all
    pairs of rows, which takes ten seconds.
    """
    empty = jnp.zeros((NUM_ROWS, NUM_CLASSES)), jnp.zeros(NUM_ROWS, jnp.int32)
    return {
        name: one
        for name, one in metrics.catalogue().items()
        if not {"score", "bandwidth"} & set(one.defaults())
        and jax.tree.map(jnp.shape, jax.eval_shape(one, *empty)) in ((), (NUM_CLASSES,))
    }


@pytest.fixture(scope="module")
def means(numbers):
    """Average metrics of a calibrated model over draws of 40 rows and of 640 rows."""
    random = np.random.default_rng(0)
    shape = (128, NUM_ROWS, NUM_CLASSES)
    logits = (1.5 * random.standard_normal(shape)).astype(np.float32)
    labels = (logits + random.gumbel(size=shape)).argmax(-1)

    @jax.jit
    @jax.vmap
    def drawn(logits, labels, weights):
        values = metrics.values_of(numbers, logits, labels, weights)
        return {name: jnp.nanmean(value) for name, value in values.items()}

    few, many = (
        drawn(logits, labels, np.broadcast_to(np.arange(NUM_ROWS) < count, labels.shape) * 1.0)
        for count in (FEW, NUM_ROWS)
    )
    return {name: (np.asarray(few[name]), np.asarray(many[name])) for name in numbers}


@pytest.mark.slow
def test_metrics_that_fall_with_more_rows_of_a_calibrated_model_are_biased(numbers, means):
    for name, (few, many) in means.items():
        fall = few.mean() - many.mean()
        significant = fall > 4 * few.std() / len(few) ** 0.5
        assert numbers[name].biased == (significant and fall > 0.2 * few.mean()), name


def test_what_the_law_leaves_out_is_biased_too():
    assert metrics.ece.with_options(num_bins=3).biased
    assert metrics.named("adaptive_ece", binning="released").biased
    assert metrics.brier_decomposition.biased
    assert metrics.kde_calibration_error.biased
