r"""Label shift: only the class prior changes between training and use.

    prior = calibrators.estimate_prior(logits, source_prior).prior     from unlabelled examples
    calibrators.with_prior(logits, source_prior, prior)                logits under that prior

If $p(x | y)$ stays the same, the probabilities under a new prior are
$p'_k \propto p_k \, \pi'_k / \pi_k$. This needs calibrated logits: calibrate them on held-out
examples of the old prior first, with `bias_corrected_temperature` (Alexandari et al. 2020). A
long-tailed model under the balanced prior is `with_prior(logits, class_counts, ones)`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.calibrators.parts import contract
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.arrays import as_array
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, Logits, Number, Scalar


class PriorEstimate(NamedTuple):
    """The class prior of unlabelled examples.

    Attributes:
      prior: the share of each class.
      converged: whether the last step changed no share by more than the tolerance.
      iterations: the number of steps.
      gain: the mean log-likelihood ratio of this prior to the old one; at least 0.
    """

    prior: Float[Array, " classes"]
    converged: Bool[Array, ""]
    iterations: Integer[Array, ""]
    gain: Scalar


def with_prior(logits: Any, source_prior: Any, target_prior: Any) -> Logits:
    r"""Compute the logits under another class prior, $z_k + \log \pi'_k - \log \pi_k$.

    Args:
      logits: `[*batch, classes]`, calibrated under the source prior.
      source_prior: the share or the count of each class where the logits are calibrated.
      target_prior: the share or the count of each class under the new prior.

    References:
      Saerens, Latinne and Decaestecker 2002, Adjusting the Outputs of a Classifier to New a Priori
      Probabilities, equation 2.4.

    >>> logits = jnp.log(jnp.array([[0.9, 0.1]]))
    >>> jax.nn.softmax(with_prior(logits, [0.9, 0.1], [0.5, 0.5])).round(4)
    Array([[0.5, 0.5]], dtype=float32)
    """
    logits = contract.logits_for("with_prior", logits)
    num_classes = logits.shape[-1]
    source = _prior("source_prior", source_prior, num_classes, positive=True)
    target = _prior("target_prior", target_prior, num_classes)
    change = (jnp.log(target) - jnp.log(source)).astype(logits.dtype)
    return logits + jnp.broadcast_to(change, logits.shape)


def estimate_prior(
    logits: Any,
    source_prior: Any,
    weights: Any = None,
    *,
    tolerance: Number = 1e-6,
    max_iterations: Number = 10_000,
) -> PriorEstimate:
    r"""Estimate the class prior of unlabelled examples by expectation maximisation.

    $$\pi'_k \leftarrow \frac1n \sum_i
      \frac{p_{ik} \, \pi'_k / \pi_k}{\sum_j p_{ij} \, \pi'_j / \pi_j}$$

    from $\pi' = \pi$. It maximises a concave likelihood. The logits must be calibrated under the
    source prior, and their mean probabilities under the source prior must equal that prior: a model
    that overstates a class finds a shift where there is none.

    Args:
      logits: `[*batch, classes]`, of unlabelled examples.
      source_prior: the share or the count of each class where the logits are calibrated.
      weights: `[*batch]`; weight 0 drops an example, weight k counts it k times.
      tolerance: the estimate has converged if no share changes by more than this.
      max_iterations: the largest number of steps.

    References:
      Saerens, Latinne and Decaestecker 2002, equation 2.9.

    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.1]]))
    >>> estimate_prior(logits, [0.5, 0.5]).prior.round(4)
    Array([0.8125, 0.1875], dtype=float32)
    """
    checks.above("tolerance", tolerance, 0)
    checks.at_least("max_iterations", max_iterations, 1)
    unlabelled = np.zeros(np.shape(as_array(logits))[:-1], np.int32)
    examples = contract.examples("estimate_prior", logits, unlabelled, weights)
    source = _prior("source_prior", source_prior, examples.logits.shape[-1], positive=True)
    return _estimate(examples, source, tolerance, max_iterations)


@jax.jit
def _estimate(
    examples: contract.FitData,
    source: Float[Array, " classes"],
    tolerance: Number,
    max_iterations: Number,
) -> PriorEstimate:
    rows = examples.rows()
    share = contract.shares(rows.weight)
    source = source.astype(rows.logits.dtype)
    likelihood = jax.nn.log_softmax(rows.logits) - jnp.log(source)[None]

    def posterior(prior: Array) -> Array:
        return jax.nn.softmax(likelihood + jnp.log(prior)[None])

    def going(walk: tuple[Array, Array, Array]) -> Array:
        _, change, step = walk
        return (change > tolerance) & (step < max_iterations)

    def iterate(walk: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        prior, _, step = walk
        mean = share @ posterior(prior)
        return mean, jnp.max(jnp.abs(mean - prior)), step + 1

    first = (source, jnp.asarray(jnp.inf, source.dtype), jnp.zeros((), jnp.int32))
    prior, change, steps = lax.while_loop(going, iterate, first)
    ratio = jax.nn.logsumexp(likelihood + jnp.log(prior)[None], axis=1)
    gain = jnp.sum(weigh(ratio, share))
    return PriorEstimate(prior, change <= tolerance, steps, gain)


def _prior(name: str, given: Any, num_classes: int, *, positive: bool = False) -> Array:
    """Validate shares or counts of the classes, and divide them by their sum."""
    shape = np.shape(given)
    if shape != (num_classes,):
        raise ValueError(
            f"{name} must have one number for each of the {num_classes} classes, got the shape"
            f" {shape}."
        )
    if positive:
        checks.above(name, given, 0)
    else:
        checks.at_least(name, given, 0)
    prior = jnp.asarray(given, float)
    total = jnp.sum(prior)
    if checks.concrete(total) and not 0 < float(total) < np.inf:
        raise ValueError(f"{name} must have a finite positive sum, got {float(total):g}.")
    return prior / total
