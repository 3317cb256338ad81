r"""Compute the population minimiser of a loss, and the gamma that calibrates a network."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from calib_jax.core import population

_LARGEST = 20.0  # focal loss
_ROWS = 5000
_PRECISE = 1e-3


def population_minimizer(loss: str, p: Any, **options: Any) -> Float[np.ndarray, "*batch classes"]:
    r"""Compute the prediction that training on infinite data with a loss would give.

    $$q^*(p) = \arg\min_q \sum_y p_y \, \ell(q, y)$$

    A weight on the gradient has the stationary point $\sum_y p_y u(q, y) (q - e_y) = 0$ instead.
    Cross-entropy, Brier, and cross-entropy plus MMCE, MDCA, DCA or ESD have $q^* = p$. Focal loss
    makes q less certain than p, inverse focal loss more certain. Where a weight with a jump (FLSD)
    or dual focal loss has several stationary points, the result is the one reached from p.

    Args:
      loss: the name of an objective of the catalogue. Adaptive objectives, whose weights follow
        validation data, have no minimiser, nor has `logit_norm`: the error gives the reason.
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
    measures how much the network over-fits. The search is a bisection over gamma, which is at most
    20 for focal and 2 for inverse focal loss, on at most 5,000 rows.

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
    z, y = population.rows_of(logits, labels)
    every = -(-len(z) // _ROWS)
    z, y = z[::every], y[::every]
    fitted = population.temperature(z, y)
    loss, largest = ("focal", _LARGEST) if fitted > 1 else ("inverse_focal", 2.0)

    def predicted(gamma: float) -> float:
        q_logits = population.predicted_logits(z, fitted, loss, gamma=gamma)
        return population.temperature(q_logits, y)

    low, high, at_high = 0.0, largest, predicted(largest)
    if (at_high - 1) * (fitted - 1) > 0:
        return MatchedFocal(loss, largest, at_high, fitted)
    reached, gamma = fitted, 0.0
    while high - low > _PRECISE * (1 + low):
        gamma = (low + high) / 2
        reached = predicted(gamma)
        low, high = (gamma, high) if (reached - 1) * (fitted - 1) > 0 else (low, gamma)
    return MatchedFocal(loss, gamma, reached, fitted)
