"""Every calibrator of the catalogue, data to fit them on, and a slow NumPy NLL."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax import calibrators
from tests.selection import some

MEMBERS = sorted(calibrators.catalogue())
# With these the costly laws run by default: one parameter, bins, and a fit of knots.
QUICK = {"temperature", "histogram", "isotonic"}
costly = pytest.mark.parametrize("name", some(MEMBERS, QUICK))


ONES = np.ones(80)  # given where others give weights, so that fits share their programs


def problem(num_rows=80, num_classes=3, seed=0, temperature=2.5, dtype=np.float32):
    """Return overconfident logits, and labels drawn from the calibrated ones."""
    random = np.random.default_rng(seed)
    calibrated = 1.5 * random.standard_normal((num_rows, num_classes))
    labels = np.argmax(calibrated + random.gumbel(size=calibrated.shape), axis=-1)
    return (temperature * calibrated).astype(dtype), labels


def mean_nll(logits, labels, weights=None):
    """Return the weighted mean NLL, in float64."""
    log_p = scipy.special.log_softmax(np.asarray(logits, np.float64), axis=-1)
    return np.average(-log_p[np.arange(len(labels)), labels], weights=weights)


@functools.cache
def applied(name):
    """Compile a calibrator's `apply` once; it is traced anew for each shape."""
    return jax.jit(calibrators.named(name).apply)


def calibrated(name, logits, labels, weights=None, new=None):
    """Fit, apply to the same logits or to new ones; return parameters and probabilities."""
    weights = None if weights is None else jnp.asarray(weights)
    params = calibrators.named(name).fit(jnp.asarray(logits), jnp.asarray(labels), weights)
    answer = applied(name)(params, jnp.asarray(logits if new is None else new))
    return params, scipy.special.softmax(np.asarray(answer), axis=-1)


def floats(params):
    """List the floating-point arrays of parameters."""
    return [np.asarray(x) for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]
