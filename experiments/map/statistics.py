r"""Effects of the losses along the map, with draws of their joint noise; the rule and its regret.

A cell of the map is a data set, a weight decay and a loss. Draws of the cells are normal with the
covariance of three sources: training seeds, test rows and validation rows. A draw adds to the mean

$$\sum_k w_k \frac{v_k - \bar v}{\sqrt{S (S - 1)}}
  + \sqrt{\frac{G - 1}{G}} \sum_g w_g (\theta_{-g} - \bar\theta)$$

with standard normal weights: $v_k$ is the value of seed k of S, and $\theta_{-g}$ the value
without fold g of G. The weights of seeds are shared by the losses of a data set and weight decay,
those of folds by all cells of a data set, so that differences of losses are paired.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from experiments.map.measures import FOLDS
from experiments.map.settings import BASELINE, Setting

BANDS = (0.8, 1.25, 1.8)  # temperatures of cross-entropy between the bands of the rule
MADE_ON = ("banking77", "clinc150")
TESTED_ON = "newsgroups"
_DEGREES_OF_FREEDOM = 9
LEVEL = 0.05

Records = Mapping[Setting, Mapping[str, Any]]


class Cells(NamedTuple):
    """A metric in all cells of some data sets and weight decays.

    Attributes:
      places: data set and weight decay of each row.
      losses: the loss of each column, cross-entropy first.
      temperature: the mean temperature of cross-entropy of each row.
      means: means over the seeds, `[places, losses]`.
      draws: the means with noise, `[draws, places, losses]`.
    """

    places: list[tuple[str, float]]
    losses: list[str]
    temperature: np.ndarray
    means: np.ndarray
    draws: np.ndarray

    def of(self, texts: Sequence[str]) -> "Cells":
        """Select data sets."""
        rows = [number for number, place in enumerate(self.places) if place[0] in texts]
        return Cells(
            [self.places[row] for row in rows],
            self.losses,
            self.temperature[rows],
            self.means[rows],
            self.draws[:, rows],
        )

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Return means and draws of a metric to be small: the root of a squared error."""
        return np.sqrt(np.maximum(self.means, 0)), np.sqrt(np.maximum(self.draws, 0))


def cells(records: Records, metric: str, *, draws: int = 2_000, seed: int = 0) -> Cells:
    """Collect a metric of all places whose losses all have a record, and draw its noise.

    Args:
      records: the records by setting.
      metric: a metric of the records, such as "ce2_before".
      draws: the number of draws.
      seed: seed of the draws.
    """
    losses = list(dict.fromkeys(setting.loss for setting in records))
    losses.sort(key=lambda loss: loss != BASELINE)
    places = [
        place
        for place in dict.fromkeys((setting.texts, setting.weight_decay) for setting in records)
        if all(Setting(place[0], loss, place[1]) in records for loss in losses)
    ]
    if not places or losses[0] != BASELINE:
        raise ValueError(
            "no data set and weight decay has a record of cross-entropy and of every other loss:"
            " experiments.map.run trains them."
        )
    generator = np.random.default_rng(seed)
    by_fold = {
        (texts, kind): generator.standard_normal((draws, FOLDS))
        for texts in dict.fromkeys(texts for texts, _ in places)
        for kind in ("without_test", "without_validation")
    }
    means = np.empty((len(places), len(losses)))
    drawn = np.empty((draws, *means.shape))
    temperature = np.empty(len(places))
    for row, (texts, weight_decay) in enumerate(places):
        first = records[Setting(texts, BASELINE, weight_decay)]
        temperature[row] = np.mean(first["values"]["temperature"])
        by_seed = generator.standard_normal((draws, len(first["seeds"])))
        for column, loss in enumerate(losses):
            record = records[Setting(texts, loss, weight_decay)]
            values = np.asarray(record["values"][metric])
            count = len(values)
            means[row, column] = values.mean()
            noise = by_seed @ (values - values.mean()) / np.sqrt(count * (count - 1))
            for kind in ("without_test", "without_validation"):
                if metric in record[kind]:
                    folds = np.asarray(record[kind][metric])
                    spread = by_fold[texts, kind] @ (folds - folds.mean())
                    noise = noise + np.sqrt((FOLDS - 1) / FOLDS) * spread
            drawn[:, row, column] = means[row, column] + noise
    return Cells(places, losses, temperature, means, drawn)


class Estimate(NamedTuple):
    """A value with its 90 % interval and p-value, arrays of the same shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray


def _estimate(value: np.ndarray, draws: np.ndarray) -> Estimate:
    """Estimate by a t-distribution with the standard deviation of the draws."""
    deviation = draws.std(axis=0)
    law = scipy.stats.t(_DEGREES_OF_FREEDOM)
    reach = law.ppf(0.95) * deviation
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * law.sf(np.abs(value) / deviation)
    return Estimate(value, value - reach, value + reach, p)


def gains(found: Cells) -> Estimate:
    """Estimate cross-entropy minus each other loss, `[places, losses - 1]`."""
    return _estimate(
        found.means[:, :1] - found.means[:, 1:], found.draws[..., :1] - found.draws[..., 1:]
    )


def slopes(found: Cells) -> Estimate:
    """Estimate the slope of the gain against log T over the places of a data set, per loss."""
    x = np.log(found.temperature)
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()
    return _estimate(
        weights @ (found.means[:, :1] - found.means[:, 1:]),
        np.einsum("r,drl->dl", weights, found.draws[..., :1] - found.draws[..., 1:]),
    )


def holm(p: np.ndarray) -> np.ndarray:
    """Adjust p-values of any shape by Holm's procedure.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    flat = p.ravel()
    order = np.argsort(flat)
    stepped = np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1))
    adjusted = np.empty_like(flat)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted.reshape(p.shape)


def ranks(found: Cells) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average the rank of each loss over the places; 1 has the lowest value.

    Returns:
      The mean ranks, and the ends of the central 90 % of the draws.
    """
    mean = scipy.stats.rankdata(found.means, axis=1).mean(axis=0)
    drawn = scipy.stats.rankdata(found.draws, axis=2).mean(axis=1)
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    return mean, low, high


def band_of(temperature: np.ndarray) -> np.ndarray:
    """Number the band of the rule in which each temperature of cross-entropy lies."""
    return np.searchsorted(BANDS, temperature, side="right")


def rule(temperature: np.ndarray, scores: np.ndarray) -> dict[int, int]:
    """Choose the loss with the lowest mean score in each band; an empty band takes the nearest.

    Args:
      temperature: of cross-entropy in each place.
      scores: `[places, losses]`, to be small.
    """
    bands = band_of(temperature)
    there = {band: int(scores[bands == band].mean(axis=0).argmin()) for band in np.unique(bands)}
    return {
        band: there[min(there, key=lambda other: (abs(other - band), other))]
        for band in range(len(BANDS) + 1)
    }


class Regret(NamedTuple):
    """The mean regret of a choice on the data set that is tested, with its 90 % interval."""

    value: float
    low: float
    high: float


def regrets(found: Cells, calibrated: Cells) -> tuple[dict[int, int], dict[str, Regret], float]:
    """Make the rule on two data sets, and compute its regret on the third.

    Args:
      found: the squared calibration error before the temperature.
      calibrated: the same after the temperature.

    Returns:
      The loss of each band; the regrets of the rule, of cross-entropy, of the single best loss, of
      a loss at random and of cross-entropy after its temperature; and the share of draws in which
      the rule has a lower regret than the single best loss.
    """
    made, tested = found.of(MADE_ON), found.of((TESTED_ON,))
    after = calibrated.of((TESTED_ON,)).scores()
    for name, part in (("made", made), ("tested", tested)):
        if not part.places:
            raise ValueError(
                f"the rule cannot be {name}: the map has no complete place of these data sets."
            )
    scores, _ = made.scores()
    chosen = rule(made.temperature, scores)
    single = int(scores.mean(axis=0).argmin())
    columns = np.array([chosen[band] for band in band_of(tested.temperature)])
    by_name: dict[str, list[np.ndarray]] = {}
    for place, array in enumerate(tested.scores()):
        best = array.min(axis=-1)
        rows = np.arange(len(columns))
        chosen_scores = {
            "rule": array[..., rows, columns],
            "cross-entropy": array[..., 0],
            "single best loss": array[..., single],
            "a loss at random": array.mean(axis=-1),
            "cross-entropy after T": after[place][..., 0],
        }
        for name, values in chosen_scores.items():
            by_name.setdefault(name, []).append((values - best).mean(axis=-1))
    result = {
        name: Regret(float(value), *map(float, np.quantile(draws, (0.05, 0.95))))
        for name, (value, draws) in by_name.items()
    }
    lower = by_name["rule"][1] < by_name["single best loss"][1]
    return chosen, result, float(lower.mean())
