r"""Effects of the losses along the map, with their joint noise.

A cell of the map is a place and a loss; a place is a data set, a weight decay and a condition. The
mean of a cell has three sources of noise: training seeds, test rows and validation rows. They
are independent standard normal variables $w$, and the cell's mean with noise is

$$\bar v + \sum_k w_k \frac{v_k - \bar v}{\sqrt{S (S - 1)}}
  + \sqrt{\frac{G - 1}{G}} \sum_g w_g (\theta_{-g} - \bar\theta)$$

where $v_k$ is the value of seed k of S, and $\theta_{-g}$ the value without fold g of G. The
losses of a place share the variables of seeds, all cells of a data set share those of folds, so
differences of losses are paired. `Cells.noise` holds the coefficients of all $w$: the variance of
any linear combination of means is the squared norm of the same combination of coefficients.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from calib_jax import inference
from experiments.map.measures import FOLDS
from experiments.map.settings import (
    BASELINE,
    FOCAL,
    LOSSES,
    SEEDS,
    TEXTS,
    WEIGHT_DECAYS,
    Setting,
    settings,
)

BANDS = (0.8, 1.25, 1.8)  # temperatures of cross-entropy between the bands of the rule
MADE_ON = ("banking77", "clinc150")
LEARNED = 0.9  # a network with a larger error learned nothing
LEVEL = 0.05
DRAWS = 2_000

Records = Mapping[Setting, Mapping[str, Any]]


class Place(NamedTuple):
    """A data set, a weight decay and their seeds, in which losses are compared."""

    texts: str
    weight_decay: float
    condition: str = ""

    def setting(self, loss: str) -> Setting:
        """The setting of a loss in this place."""
        return Setting(self.texts, loss, self.weight_decay, self.condition)

    @property
    def name(self) -> str:
        """A short name.

        >>> Place("banking77", 5e-4, "width64").name
        'banking77 0.0005 width64'
        """
        return f"{self.texts} {self.weight_decay:g} {self.condition}".strip()


class Cells(NamedTuple):
    """A metric in the cells of some places; NaN where a setting has no record.

    Attributes:
      metric: the name of the metric.
      places: the place of each row.
      losses: the loss of each column, cross-entropy first.
      temperature: the mean temperature of cross-entropy of each row.
      means: means over the seeds, `[places, losses]`.
      noise: coefficients of the noise, `[places, losses, sources]`.
      degrees_of_freedom: the lowest number of seeds of a place, minus 1.
    """

    metric: str
    places: list[Place]
    losses: list[str]
    temperature: np.ndarray
    means: np.ndarray
    noise: np.ndarray
    degrees_of_freedom: int

    def rows(self, chosen: Iterable[int] | np.ndarray) -> "Cells":
        """Select rows."""
        index = [int(row) for row in chosen]
        return self._replace(
            places=[self.places[row] for row in index],
            temperature=self.temperature[index],
            means=self.means[index],
            noise=self.noise[index],
        )

    def of(self, texts: Sequence[str]) -> "Cells":
        """Select data sets."""
        return self.rows(row for row, place in enumerate(self.places) if place.texts in texts)

    def complete(self) -> "Cells":
        """Select the places in which all losses have a record."""
        return self.rows(np.flatnonzero(np.isfinite(self.means).all(axis=1)))

    def draws(self) -> np.ndarray:
        """Draw the means with noise, `[draws, places, losses]`; each metric has the same draws."""
        generator = np.random.default_rng(0)
        weights = generator.standard_normal((DRAWS, self.noise.shape[-1]))
        return self.means + np.einsum("ds,pls->dpl", weights, self.noise, optimize=True)

    def scored(self, values: np.ndarray) -> np.ndarray:
        """Return means or draws on the scale of the rule: the root of a squared error."""
        return np.sqrt(np.maximum(values, 0)) if self.metric.startswith("ce2") else values


def is_dead(record: Mapping[str, Any]) -> bool:
    """Check whether the networks of a record learned nothing."""
    return float(np.mean(record["values"].get("error", 0))) > LEARNED


def cells(
    records: Records,
    metric: str,
    *,
    losses: Sequence[str] = tuple(LOSSES),
    places: Iterable[Place] | None = None,
    transform: Callable[[np.ndarray], np.ndarray] = np.asarray,
    dead: bool = False,
) -> Cells:
    """Collect a metric of the places in which cross-entropy has a record.

    A network that errs on more than `LEARNED` learned nothing. It states low confidences and is
    calibrated without being of use, so it is in no comparison.

    Args:
      records: the records by setting.
      metric: a metric of the records, such as "ce2_before"; places in which cross-entropy lacks
        it are left out.
      losses: the losses of the columns, cross-entropy first.
      places: the places that may be collected; the places of the map by default.
      transform: function of the values of seeds and of the values without a fold.
      dead: whether to include networks that learned nothing.
    """
    if places is None:
        places = (Place(texts, decay) for texts in TEXTS for decay in WEIGHT_DECAYS)
    there = [
        place
        for place in places
        if (record := records.get(place.setting(BASELINE))) and metric in record["values"]
    ]
    texts = list(dict.fromkeys(place.texts for place in there))
    width = len(SEEDS) * len(there)
    shape = (len(there), len(losses))
    means = np.full(shape, np.nan)
    noise = np.zeros((*shape, width + 2 * FOLDS * len(texts)))
    temperature = np.empty(len(there))
    counts = {len(SEEDS)}
    for row, place in enumerate(there):
        temperature[row] = np.mean(records[place.setting(BASELINE)]["values"]["temperature"])
        folds_at = width + 2 * FOLDS * texts.index(place.texts)
        for column, loss in enumerate(losses):
            record = records.get(place.setting(loss))
            if record is None or metric not in record["values"] or (not dead and is_dead(record)):
                noise[row, column] = np.nan
                continue
            values = transform(np.asarray(record["values"][metric]))
            counts.add(count := len(values))
            means[row, column] = values.mean()
            at = len(SEEDS) * row
            noise[row, column, at : at + count] = (values - values.mean()) / np.sqrt(
                count * (count - 1)
            )
            for number, kind in enumerate(("without_test", "without_validation")):
                if metric in record[kind]:
                    folds = transform(np.asarray(record[kind][metric]))
                    at = folds_at + FOLDS * number
                    noise[row, column, at : at + FOLDS] = np.sqrt((FOLDS - 1) / FOLDS) * (
                        folds - folds.mean()
                    )
    return Cells(metric, there, list(losses), temperature, means, noise, min(counts) - 1)


class Estimate(NamedTuple):
    """A value with its 90 % interval and two-sided p-value, arrays of the same shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray


def estimate(value: np.ndarray, noise: np.ndarray, degrees_of_freedom: int) -> Estimate:
    """Estimate by a t-distribution with the norm of the noise as standard deviation."""
    deviation = np.linalg.norm(noise, axis=-1)
    law = scipy.stats.t(degrees_of_freedom)
    reach = law.ppf(0.95) * deviation
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * law.sf(np.abs(value) / deviation)
    return Estimate(value, value - reach, value + reach, p)


def gains(found: Cells) -> Estimate:
    """Estimate cross-entropy minus each other loss, `[places, losses - 1]`."""
    return estimate(
        found.means[:, :1] - found.means[:, 1:],
        found.noise[:, :1] - found.noise[:, 1:],
        found.degrees_of_freedom,
    )


def slopes(found: Cells) -> Estimate:
    """Estimate the slope of the gain against log T over the places of a data set, per loss."""
    x = np.log(found.temperature)
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()
    return estimate(
        weights @ (found.means[:, :1] - found.means[:, 1:]),
        np.einsum("r,rls->ls", weights, found.noise[:, :1] - found.noise[:, 1:]),
        found.degrees_of_freedom,
    )


def holm(p: np.ndarray, tests: int | None = None) -> np.ndarray:
    """Adjust p-values of any shape by Holm's procedure.

    Args:
      p: p-values; NaN is a test without a result, and stays NaN.
      tests: the number of tests of the family. Tests without a result count as p = 1, so the
        adjusted p-values can only fall when these results come.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    known = p[np.isfinite(p)]
    family = np.ones(p.size if tests is None else tests)
    family[: len(known)] = known
    adjusted = np.full_like(p, np.nan)
    adjusted[np.isfinite(p)] = inference.holm(family)[: len(known)]
    return adjusted


def band_of(temperature: np.ndarray) -> np.ndarray:
    """Number the band of the rule in which each temperature of cross-entropy lies."""
    return np.searchsorted(BANDS, temperature, side="right")


def two_best(records: Records) -> list[str]:
    """Choose the two losses of the conditions; [] while the map lacks a record of their data sets.

    They have the lowest mean root-CE2 before the temperature, beside cross-entropy and focal loss.
    """
    if any(setting not in records for setting in settings() if setting.texts in MADE_ON):
        return []
    of = cells(records, "ce2_before", dead=True).of(MADE_ON)
    order = of.scored(of.means).mean(axis=0).argsort()
    return [of.losses[k] for k in order if of.losses[k] not in (BASELINE, FOCAL)][:2]
