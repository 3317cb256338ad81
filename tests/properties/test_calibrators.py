"""Every calibrator on random data: a usable fit or a state that says why not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from calib_jax import calibrators
from calib_jax.calibrators.parts import linear
from tests.calibrators import MEMBERS

from . import Batch, batches, few_and_many

FEW_SHAPES = ((20, 3),)
MANY_SHAPES = ((20, 3), (1, 2), (3, 2), (50, 10))
# The others take seconds to compile, each for every type of labels.
QUICK = ("temperature", "histogram")
# These are counts, not the end of a descent.
COUNTED = {"histogram", "isotonic", "bbq", "venn_abers"}


@functools.cache
def compiled(name):
    """Compile fitting, and applying to the same logits."""
    member = calibrators.named(name)

    def run(logits, labels, weights):
        params = member.fit(logits, labels, weights)
        return params, member.apply(params, jnp.where(weights[:, None] > 0, logits, 0))

    return jax.jit(run)


def of(name, batch):
    params, logits = compiled(name)(*map(jnp.asarray, batch))
    return params, np.asarray(jax.nn.softmax(logits))


def chosen(shapes, *, names=tuple(MEMBERS), **options):
    return {"name": st.sampled_from(names), "batch": batches(shapes, **options)}


def sizes(**options):
    """Return the strategies of the two sizes of a property."""
    return {
        "few": chosen(FEW_SHAPES, names=QUICK, dtypes=("int32",), **options),
        "many": chosen(MANY_SHAPES, **options),
    }


@few_and_many(**sizes(), share=0.5)
def TestAFitIsUsableOrSaysWhyNot(name: str, batch: Batch) -> None:
    """Parameters and probabilities are numbers, or all NaN with the state `unusable`."""
    params, p = of(name, batch)
    present = batch.weights > 0
    floats = [
        np.asarray(leaf)
        for field, leaf in params._asdict().items()
        if field != "state" and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    if params.state.name == "unusable":
        assert all(np.isnan(leaf).all() for leaf in floats)
        return
    assert not any(np.isnan(leaf).any() for leaf in floats)
    np.testing.assert_allclose(p[present].sum(axis=1), 1, rtol=1e-5)
    assert not np.any(p[present][np.isneginf(batch.logits[present])])


# Rows of weight 1e-30, and logarithms of nearly equal probabilities, which are collinear, leave
ORDINARY = {"exponents": (-1, 2), "impossible": False, "tiny": False}


@few_and_many(**sizes(**ORDINARY), share=0.5)
def TestRowsHaveNoOrderAndAbsentOnesNoContent(name: str, batch: Batch) -> None:
    """Rows may be permuted, and those of weight 0 hold anything."""
    params, p = of(name, batch)
    order = np.random.default_rng(0).permutation(len(p))
    absent = batch.weights == 0
    clean = batch._replace(
        logits=np.where(absent[:, None], np.float32(1), batch.logits),
        labels=np.where(absent, 0, batch.labels).astype(batch.labels.dtype),
    )
    again, permuted = of(name, clean.rows(order))
    # Without an optimum the NLL falls for ever, and rounding decides where a fit stops.
    if params.state.converged and again.state.converged:
        nll = params.state.nll_after
        np.testing.assert_allclose(again.state.nll_after, nll, rtol=1e-2, atol=1e-3)
        keep = ~absent[order]
        permuted, p = permuted[keep], p[order][keep]
        if name in COUNTED:
            np.testing.assert_allclose(permuted, p, rtol=0.05, atol=5e-3)
            return
        # The NLL beyond its minimum is the mean divergence KL(p* || p), and at least twice the mean
        # squared total variation (Pinsker). So a flat valley allows one row of many to differ.
        distance = np.abs(permuted - p).sum(axis=1) / 2
        mean = np.average(distance**2, weights=clean.weights[order][keep])
        beyond = linear.GAIN * nll
        bound = np.sqrt(abs(again.state.nll_after - nll) / 2) + 2 * np.sqrt(beyond / 2) + 2e-3
        assert np.sqrt(mean) <= bound
