"""Every objective on random logits, labels and weights: finite, eager as compiled, row by row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.losses.members import DEFAULTS, trained_state
from tests.losses.references import logsumexp

from . import Batch, batches, few_and_many

OBJECTIVES = {member.name: member.objective for member in DEFAULTS}
NAMES = tuple(sorted(OBJECTIVES))
FEW_SHAPES = ((6, 4),)
# One of every way to make a loss; each takes a second to compile.
DISTINCT = ("adafocal", "bsce_gra", "mmce", "recall")
MANY_SHAPES = ((6, 4), (3, 130), (1, 2), (50, 10), (7, 200), (2, 128))


# Ranks so sharp that the last digit of a probability is a step. The hardest examples end at a
# threshold: rounding decides which of two nearly equal losses is kept, and with what share. ESD
# orders confidences, also those that are equal but for rounding.
STEPS = {"soft_ece", "ohem", "bootstrapped", "esd"}
# A kernel of |c_i - c_j| has a kink where two confidences are equal but for rounding, and the
# Lovász extension where two errors are, as those of equal rows. MDCA and DCA have one where a gap
# is 0. The gradient of LogitNorm is what a projection leaves of one that can be much larger.
KINKS = {"mmce", "mmce_weighted", "lovasz", "mdca", "dca", "logit_norm"}
# The square of a logit, and a logit divided by a row's share of the weight: float32 holds these
# only to a limit.
SQUARES, SHARES = {"class_adaptive_margin"}, {"recall_precision"}


def terms_and_gradient(objective, state, logits, labels, weights):
    """Return the terms `[n]`, and the gradient of their weighted sum."""

    def total(z):
        terms = objective.value(state, z, labels, weights)
        return jnp.sum(jnp.where(weights > 0, weights * terms, 0)), terms

    gradient, terms = jax.grad(total, has_aux=True)(logits)
    return terms, gradient


@functools.cache
def compiled(name):
    return jax.jit(functools.partial(terms_and_gradient, OBJECTIVES[name]))


def of(name, batch):
    actual = compiled(name)(state_of(name, batch), *map(jnp.asarray, batch))
    return tuple(np.asarray(part) for part in actual)


def state_of(name, batch):
    return trained_state(OBJECTIVES[name], num_classes=batch.logits.shape[1])


def assert_close(name, actual, wanted, batch):
    """Compare terms and gradients: infinities and NaN are equal, the rest to rounding.

    The gradient of a weight times a loss of 1e5 is a sum in which numbers as large may cancel.
    """
    if name in STEPS:
        return
    if name in KINKS:
        actual, wanted = actual[:1], wanted[:1]
    tolerance = 2e-5
    heaviest = batch.weights.max(initial=0)
    sizes = 1.0, heaviest * (1 + np.abs(wanted[0][np.isfinite(wanted[0])]).max(initial=0) / 200)
    for one, other, size in zip(actual, wanted, sizes, strict=False):
        finite = np.isfinite(other)
        largest = max(np.abs(other[finite]).max(initial=0), size)
        np.testing.assert_array_equal(np.isfinite(one), finite)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * largest)


def chosen(shapes, *, names=NAMES, **options):
    return {"name": st.sampled_from(names), "batch": batches(shapes, **options)}


def sizes(**options):
    """Return the strategies of the two sizes of a property."""
    return {
        "few": chosen(FEW_SHAPES, names=DISTINCT, dtypes=("int32",), **options),
        "many": chosen(MANY_SHAPES, **options),
    }


def far_from_thresholds(batch):
    """Skip cases in which rounding alone decides on which side of a threshold p_y lies."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        z = batch.logits.astype(np.float64)
        p = np.exp(z - logsumexp(z)[:, None])
    assume(not np.any(np.abs(p[..., None] - np.array([0.2, 0.5])) < 1e-5))


def limit(name, weights):
    """Return the absolute value of a logit above which the loss itself may be infinite."""
    if name in SQUARES:
        return 1e18
    return 1e36 * weights.min() / weights.sum() if name in SHARES else np.inf


@few_and_many(**sizes())
def TestAnObjectiveIsANumber(name: str, batch: Batch) -> None:
    """Terms and gradients are numbers; infinite only where the truth is impossible.

    Rows of weight 0 give exactly 0, whatever they hold, and the terms are the same eager and
    compiled.
    """
    far_from_thresholds(batch)
    terms, gradient = of(name, batch)
    present = batch.weights > 0
    assert not np.isnan(terms).any()
    assert not np.any(terms[~present])
    assert not np.any(gradient[~present])
    assert not np.isnan(gradient).any()
    largest = np.abs(batch.logits[present]).max(initial=0)
    if largest < limit(name, batch.weights[present]):
        assert np.isfinite(terms).all()
        assert np.isfinite(gradient).all()
    # The law of the extremes compares eager gradients.
    eager = OBJECTIVES[name].value(state_of(name, batch), *map(jnp.asarray, batch))
    assert_close(name, (np.asarray(eager),), (terms,), batch)


@few_and_many(**sizes(exponents=(-6, 20)), share=0.5)
def TestRowsHaveNoOrderAndNoOrigin(name: str, batch: Batch) -> None:
    """Permuted rows have the permuted terms; so have labels of another integer type."""
    far_from_thresholds(batch)
    terms, gradient = of(name, batch)
    order = np.random.default_rng(0).permutation(len(terms))
    permuted = of(name, batch.rows(order))
    assert_close(name, permuted, (terms[order], gradient[order]), batch)
    present = batch.weights > 0
    wide = batch._replace(labels=np.where(present, batch.labels, -5).astype(np.int32))
    for actual, wanted in zip(of(name, wide), (terms, gradient), strict=True):
        np.testing.assert_array_equal(actual, wanted)
