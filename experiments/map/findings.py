"""Tests of the rules in README.md: from estimates of the map to states.

A test that lacks settings has no state. Its `lacking` counts them.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from experiments.map import statistics
from experiments.map.settings import FOCAL, TEXTS, WEIGHT_DECAYS, Setting
from experiments.map.statistics import LEVEL, Cells, Records

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
OVERCONFIDENT, UNDERCONFIDENT = 1.5, 0.9  # temperatures of test 3
ERROR_MARGIN = 0.005  # of test 4
_SHARE = 2 / 3  # of significant signs in test 3


def lacking(found: Records, wanted: Iterable[Setting]) -> int:
    """Count the settings without a record."""
    return sum(setting not in found for setting in wanted)


class Slopes(NamedTuple):
    """Test 1. Arrays are `[data sets, losses - 1]`, NaN where a setting lacks a record.

    Attributes:
      estimate: slopes of the gain against log T.
      adjusted: p-values after Holm's correction over all losses and data sets.
      states: the state of each loss; "" while it lacks settings.
    """

    estimate: statistics.Estimate
    adjusted: np.ndarray
    states: list[str]


def slopes(found: Cells) -> Slopes:
    """Test 1: the gain of a loss depends on T if its slope is positive on every data set."""
    absent = np.full(len(found.losses) - 1, np.nan)
    by_text = []
    for texts in TEXTS:
        of = found.of((texts,))
        whole = len(of.places) == len(WEIGHT_DECAYS)
        by_text.append(statistics.slopes(of) if whole else statistics.Estimate(*(4 * [absent])))
    estimate = statistics.Estimate(*(np.stack(columns) for columns in zip(*by_text, strict=True)))
    adjusted = statistics.holm(estimate.p, estimate.p.size)
    states = []
    for value, p in zip(estimate.value.T, adjusted.T, strict=True):
        if not np.isfinite(value).all():
            states.append("")
        elif (value > 0).all() and (p < LEVEL).all():
            states.append(HOLDS)
        else:
            # The adjusted p of a positive slope can still fall while other slopes are missing.
            final = np.isfinite(adjusted).all() or (value <= 0).any()
            states.append(FAILS if final else "")
    return Slopes(estimate, adjusted, states)


class Signs(NamedTuple):
    """Tests 3 and 6.

    Attributes:
      places: the number of places with a T of which the test states a sign.
      as_stated: how many of them have this sign.
      significant: how many of these are significant.
      state: the state; "" while settings are missing.
    """

    places: int
    as_stated: int
    significant: int
    state: str


def focal_signs(found: Cells, adjusted: np.ndarray, *, places: int, family: int) -> Signs:
    """Tests 3 and 6: FL-3 helps where T is above 1.5 and harms where T is below 0.9.

    Args:
      found: the squared calibration error before the temperature.
      adjusted: p-values of the gains after Holm's correction, as `statistics.gains`.
      places: the number of places of the whole test.
      family: the number of tests of Holm's correction.
    """
    column = found.losses.index(FOCAL)
    gain = found.means[:, 0] - found.means[:, column]
    there = np.isfinite(gain)
    wanted = (found.temperature > OVERCONFIDENT) * 1 - (found.temperature < UNDERCONFIDENT) * 1
    tested = there & (wanted != 0)
    right = tested & (np.sign(gain) == wanted)
    significant = int((right & (adjusted[:, column - 1] < LEVEL)).sum())
    count, as_stated = int(tested.sum()), int(right.sum())
    if there.sum() < places:
        state = ""
    elif as_stated == count and significant >= _SHARE * count:
        state = HOLDS
    else:
        final = as_stated < count or np.isfinite(adjusted).sum() == family
        state = FAILS if final else ""
    return Signs(count, as_stated, significant, state)


def not_worse(error: Cells) -> tuple[np.ndarray, np.ndarray]:
    """Test 4: whether each loss is not worse, and whether it is worse, than cross-entropy.

    Returns:
      Booleans `[places, losses - 1]`: the 90 % interval of error(loss) - error(cross-entropy) ends
      below half a point, and begins above half a point. Both are False where a record is missing.
    """
    gains = statistics.gains(error)
    with np.errstate(invalid="ignore"):
        return gains.low > -ERROR_MARGIN, gains.high < -ERROR_MARGIN


class Explained(NamedTuple):
    """Test 7 for one loss.

    Attributes:
      places: the number of places that are compared.
      outside: the number of places whose T lies outside the map.
      by_decay: root mean squared error of y of the map at the same weight decay.
      by_temperature: root mean squared error of y of the map at the same T.
      share: share of the draws in which the second error is lower.
      state: the state.
    """

    places: int
    outside: int
    by_decay: float
    by_temperature: float
    share: float
    state: str


def explained(found: Cells, loss: str) -> Explained:
    """Test 7: whether y under a condition is y of the map at the same temperature.

    Args:
      found: the squared calibration error in all places of the map and of the conditions.
      loss: the loss.
    """
    column = found.losses.index(loss)
    rows, decays, curves, outside = [], [], [], 0
    for row, place in enumerate(found.places):
        if not place.condition:
            continue
        of_map = [
            other
            for other, there in enumerate(found.places)
            if there.texts == place.texts and not there.condition
        ]
        weights = _interpolation(found.temperature[of_map], found.temperature[row])
        if weights is None:
            outside += 1
            continue
        rows.append(row)
        curve = np.zeros(len(found.places))
        curve[of_map] = weights
        curves.append(curve)
        decays.append(found.places.index(place._replace(condition="")))

    def errors(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gain = means[..., 0] - means[..., column]
        by_curve = gain @ np.stack(curves).T
        return tuple(
            np.sqrt(np.square(gain[..., rows] - predicted).mean(axis=-1))
            for predicted in (gain[..., decays], by_curve)
        )

    if not rows:
        return Explained(0, outside, np.nan, np.nan, np.nan, UNDECIDED)
    by_decay, by_temperature = errors(found.means)
    of_draws = errors(found.draws())
    share = float((of_draws[1] < of_draws[0]).mean())
    state = HOLDS if share > 1 - LEVEL else FAILS if share < LEVEL else UNDECIDED
    return Explained(len(rows), outside, float(by_decay), float(by_temperature), share, state)


def _interpolation(temperatures: np.ndarray, at: float) -> np.ndarray | None:
    """Return the weights of a linear interpolation in log T; None outside the temperatures."""
    x, order = np.log(temperatures), np.argsort(temperatures)
    if not temperatures.min() <= at <= temperatures.max():
        return None
    unit = np.eye(len(x))[order]
    return np.array([np.interp(np.log(at), x[order], column) for column in unit.T])
