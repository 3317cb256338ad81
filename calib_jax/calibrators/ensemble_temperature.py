r"""Ensemble temperature scaling: mix the scaled, the unscaled and the uniform distribution.

$p' = w_1 \mathrm{softmax}(z / T) + w_2 \mathrm{softmax}(z) + w_3 / K$ with $w \ge 0$,
$\sum w = 1$. Predictions do not change. Impossible classes (a logit of -inf) keep probability 0;
the uniform distribution covers only the K possible classes, like the limit of large T. Each
possible class has a probability of at least $w_3 / K$.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.calibrators import temperature
from calib_jax.calibrators.parts import contract, fitting
from calib_jax.calibrators.parts.contract import Code, FitData, State
from calib_jax.core import numerics
from calib_jax.core.types import Array, Logits, Scalar

# The non-empty subsets of the three parts.
_FACES = np.arange(7, 0, -1)[:, None] & [4, 2, 1] > 0


class EnsembleTemperatureParams(NamedTuple):
    """A temperature and the weights of the scaled, the unscaled and the uniform distribution."""

    temperature: Scalar
    mixture: Float[Array, "3"]
    state: State


Params = EnsembleTemperatureParams


def fit(logits: Any, labels: Any, weights: Any = None) -> Params:
    r"""Fit T by the NLL, then the mixture by the NLL with that T.

    The NLL is convex in the mixture. Its minimum over $w \ge 0$, $\sum w = 1$ equals the minimum
    of $\mathrm{NLL}(w) + \sum w$ over $w \ge 0$. Newton steps fit every non-empty subset of the
    parts, and the best fit without a negative weight is the exact optimum.

    An optimal mixture always exists. A finite T > 0 is optimal under the same conditions as in
    temperature scaling: some row has a larger logit than the logit of the true class, and logits
    of true classes are on average above the mean of their rows. So the state is the state of the
    temperature, unless the mixture did not converge. The fitted NLL is at most the NLL of the
    uncalibrated logits.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.

    References:
      Zhang, Kailkhura and Han 2020, Mix-n-Match: ensemble and compositional methods for
      uncertainty calibration.

    >>> logits = np.array([[9.0, 0.0, 0.0]]).repeat(10, axis=0)
    >>> params = fit(logits, [0] * 8 + [1, 2])
    >>> np.exp(apply(params, logits[0])).round(3)
    array([0.8, 0.1, 0.1], dtype=float32)
    """
    return _fit(contract.examples("ensemble_temperature", logits, labels, weights))


@jax.jit
def _fit(examples: FitData) -> Params:
    rows = examples.rows()
    alone = temperature.fit_rows(rows)

    log_parts = _log_parts(rows.logits, alone.temperature)
    parts = jnp.exp(jnp.stack([numerics.true_class(part, rows.labels) for part in log_parts]))
    parts = jnp.maximum(parts, jnp.finfo(parts.dtype).tiny)
    share = rows.decisive
    parts = jnp.where(share > 0, parts, 1)

    def local(mixture: Array) -> fitting.Local:
        # A row of probability 0 or less makes the value infinite or NaN, so the step is rejected.
        mixed = jnp.sum(mixture[:, None] * parts, axis=0)
        ratio = parts / mixed[None]
        return fitting.Local(
            jnp.sum(mixture) - jnp.sum(share * jnp.log(mixed)),
            1 - jnp.sum(share[None] * ratio, axis=1),
            jnp.matmul(share[None] * ratio, ratio.T, precision=fitting.EXACT),
        )

    def face(free: Array) -> tuple[Array, Array, Array]:
        start = free.astype(parts.dtype) / jnp.sum(free, dtype=parts.dtype)
        return fitting.dense_newton(local, start, free)

    mixtures, values, settled = jax.vmap(face)(jnp.asarray(_FACES))
    allowed = jnp.all(mixtures >= 0, axis=1) & jnp.isfinite(values)
    best = jnp.argmin(jnp.where(allowed, values, jnp.inf))
    mixture = mixtures[best] / jnp.sum(mixtures[best])
    # At T = 1 scaled and unscaled are equal and the mixture is not unique: use the scaled part.
    scaled_alone = jnp.array([1.0, 0.0, 0.0], parts.dtype)
    only = local(scaled_alone).value
    gain = only - local(mixture).value
    mixture = jnp.where(gain > 0, mixture, scaled_alone)
    state = alone.state
    code = jnp.where(settled[best] | (gain <= 0), state.code, jnp.maximum(state.code, Code.STOPPED))
    params = Params(alone.temperature, mixture, state)
    return contract.finished(params, code, rows, _apply(params, rows.logits))


def apply(params: Params, logits: Any) -> Logits:
    """Compute the log-probabilities of the fitted mixture.

    Args:
      params: the parameters that `fit` returned.
      logits: `[*batch, classes]`.
    """
    return contract.applied(Params, _apply, params, logits)


def _apply(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    log_mixture = jnp.log(params.mixture)
    scaled, unscaled, uniform = _log_parts(logits, params.temperature)
    mixed = jnp.logaddexp(scaled + log_mixture[0], unscaled + log_mixture[1])
    return jnp.logaddexp(mixed, uniform + log_mixture[2])


def _log_parts(logits: Logits, temperature: Scalar) -> tuple[Logits, Logits, Logits]:
    """Compute the log-probabilities of the scaled, the unscaled and the uniform distribution."""
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    possible = logits != -jnp.inf
    alike = jnp.where(jnp.isnan(logits), jnp.nan, jnp.where(possible, 0.0, -jnp.inf))
    number = jnp.sum(possible, axis=-1, keepdims=True, dtype=logits.dtype)
    uniform = alike.astype(logits.dtype) - jnp.log(number)
    return jax.nn.log_softmax(logits / temperature), jax.nn.log_softmax(logits), uniform


__all__ = ["Params", "apply", "fit"]
