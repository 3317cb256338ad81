"""Random arrays sharded over a mesh of eight devices give the numbers of one device."""

import functools

import jax
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from calib_jax import losses, metrics
from tests.metrics.reference import softmax
from tests.test_sharded import AXES, PLACEMENTS, mesh_of, placed

from .cases import Batch, batches, few_and_many
from .test_metrics import assert_same, without_ties_made_by_rounding

LOSSES = ("cross_entropy", "focal", "logit_norm", "margin_smoothing", "mdca", "dca")
METRICS = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "aurc")
SHAPE = (16, 4)  # rows of one register, see LANES in test_metrics


@functools.cache
def compiled():
    chosen = {name: metrics.catalogue()[name] for name in METRICS}

    def run(logits, labels, weights):
        terms = {name: losses.objective(name).value((), logits, labels, weights) for name in LOSSES}
        return terms | metrics.values_of(chosen, logits, labels, weights)

    return jax.jit(run)


def far_from_edges(batch):
    """Skip cases in which the last bit of a probability decides the bin or the order."""
    p = softmax(np.where(batch.weights[:, None] > 0, batch.logits, 0))
    top = np.sort(p, axis=1)[:, ::-1]
    confidence = top[:, 0]
    inner = np.abs(15 * confidence - np.round(15 * confidence)) < 1e-4
    assume(not np.any(inner & (confidence < 0.999)))
    assume(not np.any((top[:, 0] - top[:, 1] < 1e-6) & (top[:, 0] != top[:, 1])))
    without_ties_made_by_rounding(batch, equal_rows=False)


@few_and_many(
    {
        "batch": batches((SHAPE,), dtypes=("int32",), exponents=(-6, 6)),
        "placement": st.just("rows"),
        "axes": st.just("Explicit"),
    },
    {
        "batch": batches((SHAPE,), dtypes=("int32",), exponents=(-6, 6)),
        "placement": st.sampled_from(tuple(PLACEMENTS)),
        "axes": st.sampled_from(tuple(AXES)),
    },
)
def TestShardedArraysGiveTheSameNumbers(batch: Batch, placement: str, axes: str) -> None:
    """Losses and metrics do not depend on where rows and classes lie, nor on absent rows."""
    far_from_edges(batch)
    on_mesh = placed(mesh_of(axes), placement, batch)
    actual = jax.device_get(compiled()(*on_mesh))
    wanted = jax.device_get(compiled()(*batch))
    assert_same(actual, wanted, impossible=np.isneginf(batch.logits).any(), tolerance=2e-5)
