r"""Intervals over seeds and examples, both random: every seed predicts the same test examples.

The estimate of seed s is $\theta_s$. With a seed effect, an example effect and their interaction,
the mean over S seeds and n examples has the variance

$$\sigma_{seed}^2 / S + \sigma_{row}^2 / n + \sigma_{both}^2 / (S n).$$

The variance of the $\theta_s$, divided by S, estimates the first and the last term. With the
seeds held fixed, the mean has the variance $V = \sigma_{row}^2 / n + \sigma_{both}^2 / (S n)$,
and one seed has on average $\bar V = (\sigma_{row}^2 + \sigma_{both}^2) / n$. Hence the last term,
which both variances contain, is $(\bar V - V) / (S - 1)$, and is subtracted once. The part between
seeds has S - 1 degrees of freedom, that between examples many; `Value` combines both.

Differences of calibration errors use the debiased squared error, because noise raises a plug-in
error by an amount that depends on the model. `calib_jax/inference/residuals.py` computes its
variance over examples.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calib_jax.inference.residuals import Binned, moments
from experiments.papers.judge.estimates import Estimate
from experiments.papers.judge.values import Value

ROWS_ALONE = "one seed: over examples alone"


class Spread(NamedTuple):
    """Estimates of variance for a mean over seeds that its own seeds and rows do not give.

    Attributes:
      of_seeds: the variance between seeds with its degrees of freedom, pooled over other losses;
        None uses the seeds of the mean.
      of_validation: the variance between validation examples.
      note: for the reader.
    """

    of_seeds: tuple[float, int] | None = None
    of_validation: float = 0.0
    note: str = ""


OWN = Spread()


def over_seeds_and_rows(
    estimates: Sequence[Estimate], note: str = "", spread: Spread = OWN
) -> Value:
    """Average the estimates of all seeds, which share their examples."""
    rows = len(estimates[0].influence)
    influence = np.mean([estimate.influence for estimate in estimates], axis=0)
    return nested(
        [estimate.value for estimate in estimates],
        float(np.var(influence)) / rows,
        [float(np.var(estimate.influence)) / rows for estimate in estimates],
        rows=rows,
        note=note,
        spread=spread,
    )


def over_seeds(values: Sequence[float] | np.ndarray, note: str = "") -> Value:
    """Average values of seeds, such as weight norms, that have no variance over examples."""
    count = len(values)
    if count < 2:
        raise ValueError("one seed has no interval over seeds: use two or more.")
    deviation = float(np.std(values, ddof=1)) / math.sqrt(count)
    return Value(float(np.mean(values)), deviation, count - 1, seeds=count, note=note)


def difference_of_errors(
    first: Sequence[Binned],
    second: Sequence[Binned] | None = None,
    note: str = "",
    spread: Spread = OWN,
) -> Value:
    """Average the debiased squared calibration errors of `first` minus those of `second`.

    Args:
      first: the values of every seed.
      second: the values of the same seeds and examples; None stands for errors of 0.
      note: for the reader.
      spread: what else is known of the variance.
    """
    pairs: list[tuple[Binned, ...]] = [(a,) for a in first]
    if second is not None:
        pairs = list(zip(first, second, strict=True))
    signs = (1.0, -1.0)
    count = len(pairs)
    models = [model for pair in pairs for model in pair]
    weights = [sign / count for pair in pairs for _, sign in zip(pair, signs, strict=False)]
    return nested(
        [sum(s * m.value for m, s in zip(pair, signs, strict=False)) for pair in pairs],
        variance_of_errors(models, weights),
        [variance_of_errors(pair, signs[: len(pair)]) for pair in pairs],
        rows=len(models[0].residual),
        note=note,
        spread=spread,
    )


def nested(
    values: Sequence[float],
    variance: float,
    variances: Sequence[float],
    *,
    rows: int,
    note: str = "",
    spread: Spread = OWN,
) -> Value:
    """Combine the variance over seeds with that over examples.

    Args:
      values: the estimate of every seed.
      variance: the variance of the mean of `values` over examples, with the seeds held fixed.
      variances: the variances of every estimate over examples.
      rows: number of examples.
      note: for the reader.
      spread: what else is known of the variance.
    """
    count, value = len(values), float(np.mean(values))
    note = "; ".join(filter(None, (note, spread.note, ROWS_ALONE * (count == 1))))
    if count == 1:
        deviation = math.sqrt(variance + spread.of_validation)
        return Value(value, deviation, seeds=1, rows=rows, note=note)
    of_seeds, freedom = spread.of_seeds or (float(np.var(values, ddof=1)) / count, count - 1)
    of_both = max(0.0, float(np.mean(variances)) - variance) / (count - 1)
    of_rows = max(variance - min(of_both, of_seeds), 0.0) + spread.of_validation
    deviation = math.sqrt(of_seeds + of_rows)
    return Value(value, deviation, freedom, of_rows, seeds=count, rows=rows, note=note)


def variance_of_errors(models: Sequence[Binned], factors: Sequence[float]) -> float:
    """Compute the variance of a weighted sum of debiased squared errors on the same examples."""
    return moments(list(zip(factors, models, strict=True))).variance
