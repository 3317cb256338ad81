r"""Predict the temperature of a network that is trained with another loss.

For networks that differ in the loss alone, the temperature of held-out examples is about that of
cross-entropy times a factor of the loss. T of cross-entropy measures how much the network
over-fits; the factor is how much the population minimiser $q^*$ of the loss stretches the true
probabilities. One network of cross-entropy, with held-out logits z, therefore predicts

$$z' = T \log q^*(p), \qquad p = \mathrm{softmax}(z / T).$$
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import population
from calib_jax.inference.ce2 import Value, ce2

_FEW = 200
_STEP = 0.02  # in log T, of the difference that carries the noise of T into the prediction


class LossPrediction(NamedTuple):
    """The predicted calibration of a network trained with a loss.

    Attributes:
      loss: the loss.
      cross_entropy: the temperature of the given network.
      temperature: the predicted temperature.
      gap: the predicted mean confidence minus accuracy; negative if underconfident.
      ce2: the predicted squared calibration error of the top label, debiased.
    """

    loss: str
    cross_entropy: Value
    temperature: Value
    gap: Value
    ce2: Value

    @property
    def root_ce2(self) -> tuple[float, float, float]:
        """The root of `ce2` with the ends of its 90 % interval; 0 where these are negative."""
        parts = (self.ce2.value, self.ce2.low, self.ce2.high)
        value, low, high = (math.sqrt(max(part, 0.0)) for part in parts)
        return value, low, high


def predict_loss(logits: Any, labels: Any, loss: str, **options: Any) -> LossPrediction:
    r"""Predict T, the signed gap and CE2 of a network trained with a loss, without training it.

    The prediction assumes that the network would over-fit as much with the loss as it does with
    cross-entropy. The intervals contain the noise of the rows and of the fitted T. They do not
    contain the error of this assumption.

    Args:
      logits: held-out logits of a network trained with cross-entropy.
      labels: the true classes.
      loss: a loss that `losses.population_minimizer` knows.
      options: options of the loss, such as `gamma`.

    Returns:
      The prediction; each number is a `Value` with its interval. Fewer than 200 rows give a
      warning.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> z = 2.0 * random.normal(size=(4000, 10))
    >>> labels = (z + random.gumbel(size=z.shape)).argmax(axis=1)
    >>> found = predict_loss(2.0 * z, labels, "focal", gamma=3.0)
    >>> round(found.cross_entropy.value, 1), round(found.temperature.value, 1)
    (2.0, 1.4)
    """
    z, y = population.rows_of(logits, labels)
    rows = len(z)
    if rows < _FEW:
        warnings.warn(
            f"{rows} rows are few for a prediction of a temperature: give {_FEW} or more.",
            stacklevel=2,
        )
    fitted = population.temperature(z, y)
    log_t = math.log(fitted)
    of_fit = influence_on_temperature(z, y, log_t)

    def at(log_t: float) -> _Predicted:
        return _predicted(population.predicted_logits(z, math.exp(log_t), loss, **options), y)

    middle, low, high = at(log_t), at(log_t - _STEP), at(log_t + _STEP)

    def slope(name: str) -> float:
        return float(getattr(high, name) - getattr(low, name)) / (2 * _STEP)

    def value(number: float, influence: np.ndarray) -> Value:
        return Value(float(number), float(np.std(influence)) / math.sqrt(rows), rows=rows)

    predicted = math.exp(middle.log_t)
    of_loss = influence_on_temperature(middle.logits, y, middle.log_t) + slope("log_t") * of_fit
    error = ce2(middle.confidence, middle.right)
    noise = slope("ce2") * float(np.std(of_fit)) / math.sqrt(rows)
    return LossPrediction(
        loss,
        value(fitted, fitted * of_fit),
        value(predicted, predicted * of_loss),
        value(middle.gap, middle.confidence - middle.right + slope("gap") * of_fit),
        error._replace(deviation=math.hypot(error.deviation, noise)),
    )


class _Predicted(NamedTuple):
    """Logits and what follows from them."""

    logits: np.ndarray
    log_t: float
    confidence: np.ndarray
    right: np.ndarray
    gap: float
    ce2: float


def _predicted(logits: np.ndarray, labels: np.ndarray) -> _Predicted:
    confidence, right = population.softmax(logits).max(axis=-1), logits.argmax(axis=-1) == labels
    log_t = math.log(population.temperature(logits, labels))
    gap = float((confidence - right).mean())
    return _Predicted(logits, log_t, confidence, right, gap, ce2(confidence, right).value)


def influence_on_temperature(logits: np.ndarray, labels: np.ndarray, log_t: float) -> np.ndarray:
    """Compute the influence of each row on the logarithm of its fitted temperature."""
    slope = population.slopes(logits, labels, log_t)
    bend = (population.slopes(logits, labels, log_t + 1e-4).mean() - slope.mean()) / 1e-4
    return np.asarray(-slope / bend)
