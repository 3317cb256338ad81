"""Gammas: by the probability of an example, by the epoch, and the one that calibrates a network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from calib_jax.core import arrays, checks, population
from calib_jax.core.arrays import as_array
from calib_jax.core.numerics import power
from calib_jax.core.probabilities import Probabilities
from calib_jax.core.types import Array, Labels, Logits, Number, PerExample, PyTree, Scalar
from calib_jax.losses.focal import Uncertainty, Weighting, focal, weigh_cross_entropy
from calib_jax.losses.objectives import Objective, Progress, make_objective


@arrays.takes_logits()
def flsd(
    logits: Logits,
    labels: Labels,
    *,
    thresholds: Sequence[Number] = (0.2, 0.5),
    gammas: Sequence[Number] = (5.0, 3.0, 3.0),
    weighting: Weighting = "loss",
) -> PerExample:
    r"""Compute the focal loss with a gamma that depends on the example's own $p_y$.

    $$\ell = (1 - p_y)^{\gamma(p_y)} (-\log p_y), \qquad
      \gamma(p) = 5 \text{ if } p < 0.2, \quad 3 \text{ otherwise} \quad \text{(FLSD-53)}$$

    $\gamma(p_y)$ is a constant for differentiation. The gammas approximate `gamma_for`: at a
    lower $p_y$ a larger gamma is needed to reduce the gradient at all.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      thresholds: ascending probabilities; a p equal to a threshold is above it. The released
        text experiments use 0.19 instead of 0.2.
      gammas: one more than the thresholds. FLSD-532 has (5, 3, 2).
      weighting: "loss" or "gradient" (FLSD-GRA).

    Returns:
      One value per example, in float32 or float64.

    References:
      Mukhoti et al. 2020, section 4 and appendix D.

    >>> import jax.numpy as jnp
    >>> flsd(jnp.array([[0.0, 0.0], [-2.0, 0.0]]), jnp.array([0, 0])).round(4)
    Array([0.0866, 1.1275], dtype=float32)
    """
    uncertainty = sample_dependent_uncertainty(thresholds=thresholds, gammas=gammas)
    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


def sample_dependent_uncertainty(
    *, thresholds: Sequence[Number], gammas: Sequence[Number]
) -> Uncertainty:
    """Build the uncertainty score (1 - p_y)^gamma(p_y)."""
    gamma = gamma_by_probability(thresholds, gammas)
    return lambda p: power(p.log_rest, gamma(p))


def gamma_by_probability(
    thresholds: Sequence[Number], gammas: Sequence[Number]
) -> Callable[[Probabilities], PerExample]:
    """Build a step function from p_y to gamma; its value is a constant for autodiff."""
    if len(gammas) != len(thresholds) + 1:
        raise ValueError(
            f"gammas must have one more entry than thresholds, got {len(gammas)} gammas for"
            f" {len(thresholds)} thresholds."
        )
    checks.ascending("thresholds", thresholds)

    def gamma_of(p: Probabilities) -> PerExample:
        true = lax.stop_gradient(p.true)
        gamma = jnp.full_like(true, gammas[0])
        for threshold, following in zip(thresholds, gammas[1:], strict=True):
            gamma = jnp.where(true < threshold, gamma, following)
        return gamma

    return gamma_of


def gamma_for(p0: Any) -> np.ndarray:
    r"""Compute the gamma for which focal loss and cross-entropy have equal gradients at $p_0$.

    With $L = \log(1 - p_0)$ and $A = -p_0 \log p_0 / (1 - p_0)$ it is the positive root of

    $$g(p_0, \gamma) = (1 + A \gamma)\, e^{\gamma L} = 1, \qquad
      \gamma = \frac{1}{A} \Bigl(\frac{W_{-1}(s e^s)}{s} - 1\Bigr), \quad s = \frac{L}{A},$$

    where $W_{-1}$ is the lower branch of Lambert's function. Examples with $p_y > p_0$ then have
    smaller gradients than with cross-entropy, examples below $p_0$ larger gradients. For
    $p_0 \ge 1/2$ there is no positive root and the result is 0.

    The closed form loses precision near 1/2, where s approaches the branch point -1. The root is
    therefore computed by Newton steps on the concave $\log(1 + A\gamma) + \gamma L$, downwards
    from an upper bound, in float64 on the host, whatever the precision of the caller.

    Args:
      p0: a probability or an array of probabilities; not traced.

    Returns:
      gamma, a float64 array of the same shape.

    References:
      Mukhoti et al. 2020, Proposition 2 and section 4.

    >>> gamma_for([0.2, 0.25, 0.5]).round(4)
    array([4.8506, 3.0702, 0.    ])
    """
    if not checks.concrete(p0):
        raise TypeError("gamma_for works on the host: call it outside jit, on known numbers.")
    p = np.asarray(as_array(p0), np.float64)
    if not np.all((p > 0) & (p <= 1)):
        raise ValueError(f"p0 must lie in (0, 1], got {p0}.")
    below = p < 0.5
    q = np.where(below, p, 0.25)
    log_rest, slope = np.log1p(-q), -q * np.log(q) / (1 - q)
    # This is an upper bound of the root, because log(1 + x) <= x / sqrt(1 + x). Newton steps on a
    # concave function never cross the root when they start beyond it, past the maximum.
    gamma = ((slope / log_rest) ** 2 - 1) / slope
    for _ in range(100):
        value = np.log1p(slope * gamma) + gamma * log_rest
        gamma = gamma - value / (slope / (1 + slope * gamma) + log_rest)
    return np.where(below, gamma, 0.0)


class ScheduledGamma(NamedTuple):
    """The gamma of the current epoch."""

    gamma: Scalar


def scheduled_focal(
    *, gammas: Sequence[Number], milestones: Sequence[Number] | None = None
) -> Objective:
    r"""Build a focal loss objective whose gamma steps down between epochs.

    $$\gamma(e) = \gamma_i \quad \text{for} \quad m_i \le e < m_{i+1}, \qquad m_0 = 0$$

    with e the epoch, counted from 0; epoch 0 always has the first gamma. FLSc-531 has gammas
    (5, 3, 1), FLSc-532 (5, 3, 2).

    Args:
      gammas: one more than the milestones.
      milestones: the first epochs of the following gammas. The papers use (100, 250) in 350
        epochs and (30, 70) in 100 on Tiny-ImageNet. The default, for three gammas, scales the
        first pair to the E epochs planned: int(E 100/350), int(E 250/350).

    References:
      Mukhoti et al. 2020, section 4 and appendix.

    >>> flsc = scheduled_focal(gammas=(5.0, 3.0, 1.0))
    >>> state = flsc.init(10)
    >>> flsc.update(state, flsc.evidence(state, jnp.zeros((1, 2)), jnp.zeros(1, int)),
    ...             Progress(steps=0, epochs=14, num_epochs=50)).gamma.item()
    3.0
    """
    count = len(gammas) - 1
    if milestones is None and count != 2:
        raise ValueError(f"{len(gammas)} gammas need {count} milestones; only three have defaults.")
    if milestones is not None and len(milestones) != count:
        raise ValueError(
            f"gammas must have one more entry than milestones, got {len(gammas)} gammas for"
            f" {len(milestones)} milestones."
        )

    def update(state: ScheduledGamma, stat: PyTree, progress: Progress) -> ScheduledGamma:
        steps: Any = milestones
        if milestones is None:
            steps = np.array([100, 250], np.int32) * progress.num_epochs // 350
        index = jnp.sum(jnp.asarray(progress.epochs, float) >= jnp.asarray(steps, float))
        return ScheduledGamma(jnp.asarray(gammas, state.gamma.dtype)[index])

    def value(state: ScheduledGamma, logits: Logits, labels: Array) -> PerExample:
        return arrays.unchecked(focal)(logits, labels, gamma=state.gamma)

    return make_objective(
        value,
        soft_labels=True,
        init=lambda num_classes: ScheduledGamma(jnp.asarray(gammas[0], float)),
        update=update,
        clock="epoch",
    )


def flsc531(*, milestones: Sequence[Number] | None = None) -> Objective:
    """FLSc-531: gamma 5, then 3, then 1."""
    return scheduled_focal(gammas=(5.0, 3.0, 1.0), milestones=milestones)


def flsc532(*, milestones: Sequence[Number] | None = None) -> Objective:
    """FLSc-532: gamma 5, then 3, then 2."""
    return scheduled_focal(gammas=(5.0, 3.0, 2.0), milestones=milestones)


# --------------------------------------------------------------------------------------------
# Population minimisers.

_LARGEST = 20.0  # focal loss
_ROWS = 5000
_PRECISE = 1e-3


def population_minimizer(loss: str, p: Any, **options: Any) -> Float[np.ndarray, "*batch classes"]:
    r"""Compute the prediction that training on infinite data with a loss would give.

    $$q^*(p) = \arg\min_q \sum_y p_y \, \ell(q, y)$$

    A weight on the gradient has the stationary point $\sum_y p_y u(q, y) (q - e_y) = 0$ instead.
    Cross-entropy, Brier, and cross-entropy plus MMCE, MDCA, DCA or ESD have $q^* = p$. Focal loss
    makes q less certain than p, unless many classes share most of p; inverse focal loss does the
    opposite. Where a weight with a jump (FLSD)
    or dual focal loss has several stationary points, the result is the one reached from p.

    Args:
      loss: the name of an objective of the catalogue. Adaptive objectives, whose weights follow
        validation data, have no minimiser, nor has `logit_norm` or `mmce_weighted`: the error gives
        the reason.
      p: the true probabilities of the classes.
      options: options of the loss, such as `gamma`.

    Returns:
      q, in float64, of the shape of p; computed on the host.

    References:
      Charoenphakdee et al. 2021, On Focal Loss for Class-Posterior Probability Estimation;
      Komisarenko and Kull 2024, Improving Calibration by Relating Focal Loss, Temperature Scaling,
      and Properness.

    >>> population_minimizer("focal", [0.956, 0.044], gamma=3.0).round(3)
    array([0.7, 0.3])
    """
    return population.minimizer(loss, p, **options)


class MatchedFocal(NamedTuple):
    """A focal loss whose predicted temperature is 1.

    Attributes:
      loss: "focal" above a cross-entropy temperature of 1, "inverse_focal" below.
      gamma: the gamma of this loss.
      temperature: the temperature predicted for it; not 1 where the largest gamma does not suffice.
      cross_entropy: the temperature of the network of cross-entropy.
    """

    loss: str
    gamma: float
    temperature: float
    cross_entropy: float


def matched_focal(logits: Any, labels: Any) -> MatchedFocal:
    r"""Find the gamma for which focal or inverse focal loss would give a temperature of 1.

    T is fitted to held-out logits z of a network trained with cross-entropy. A network trained with
    focal loss is predicted to have the logits $T \log q^*(\mathrm{softmax}(z / T))$, because T
    measures how much the network over-fits, and the population minimiser $q^*$ of the loss how far
    its optimum is from the true probabilities (see `population_minimizer`). The gamma is at most 20
    for focal and 2 for inverse focal loss, and is found on at most 5,000 rows. With a gamma above
    5, networks missed the prediction, and those of SST-2 learned nothing.

    Args:
      logits: held-out logits of a network trained with cross-entropy.
      labels: the true classes.

    Returns:
      The loss with its gamma, for `losses.objective(found.loss, gamma=found.gamma)`.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> z = 2.0 * random.normal(size=(4000, 10))
    >>> labels = (z + random.gumbel(size=z.shape)).argmax(axis=1)
    >>> found = matched_focal(1.5 * z, labels)
    >>> found.loss, round(found.cross_entropy, 1), round(found.gamma, 1)
    ('focal', 1.5, 3.7)
    """
    from scipy.optimize import brentq

    z, y = population.rows_of(logits, labels)
    every = -(-len(z) // _ROWS)
    z, y = z[::every], y[::every]
    fitted = population.temperature(z, y)
    loss, largest = ("focal", _LARGEST) if fitted > 1 else ("inverse_focal", 2.0)

    @functools.cache
    def predicted(gamma: float) -> float:
        q_logits = population.predicted_logits(z, fitted, loss, gamma=gamma)
        return population.temperature(q_logits, y)

    if (predicted(largest) - 1) * (fitted - 1) > 0:
        return MatchedFocal(loss, largest, predicted(largest), fitted)
    gamma = brentq(lambda gamma: predicted(gamma) - 1, 0.0, largest, xtol=_PRECISE, rtol=_PRECISE)
    return MatchedFocal(loss, gamma, predicted(gamma), fitted)
