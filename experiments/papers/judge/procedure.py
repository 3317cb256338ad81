r"""The procedure by which calibration errors of trained networks are compared.

1. Runs are compared within a block: one network, data set and recipe, with the same seeds and test
   examples, and only the loss differs.
2. The variance between training seeds is pooled over the losses of the block (`pooling.py`). It is
   that of the root of the debiased squared error (root-CE2), because the spread of CE2 itself grows
   with its size: a root of mean m and variance s^2 has a square of variance $4 m^2 s^2 + 2 s^4$.
   Where the test of homogeneity has a p-value below .05, the block is not pooled, and a comparison
   uses the variance of its own seeds.
3. Test examples are shared by all runs of a block. Their variance is that of the U-statistic
   (`calib_jax/inference/residuals.py`), and the part that seeds and examples share counts once.
4. After temperature scaling, the validation examples are random, too. They are resampled, in the
   same way for all runs, and the temperature is fitted again.
5. p-values are one-sided, by the interval of Howe (`Value`). Holm's method adjusts all p-values of
   a source; Benjamini and Hochberg's, which bounds the share of false findings, stands beside.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from calib_jax.inference.residuals import Binned
from experiments.papers.judge import paired
from experiments.papers.judge.pooling import Pooled
from experiments.papers.judge.values import Value

HOMOGENEOUS = 0.05  # the smallest p-value of homogeneity with which a block is pooled


def difference(
    first: Sequence[Binned],
    second: Sequence[Binned],
    pooled: Pooled,
    of_validation: float = 0.0,
    note: str = "",
) -> Value:
    """Average the debiased squared errors of `first` minus those of `second` over seeds.

    Args:
      first: the test residuals of every seed.
      second: the test residuals of the same seeds.
      pooled: the variance of the block's root-CE2.
      of_validation: the variance of the difference over validation examples.
      note: for the reader.
    """
    own = paired.difference_of_errors(first, second, note)
    if pooled.homogeneity < HOMOGENEOUS:
        return with_variances(own, None, own.of_rows, of_validation)
    count = len(first)
    means = [float(np.mean([model.value for model in models])) for models in (first, second)]
    of_seeds = sum(variance_of_square(mean, pooled.variance) for mean in means) / count
    weights = [sign / count for sign in (1.0, -1.0) for _ in range(count)]
    total = paired.variance_of_errors([*first, *second], weights)
    single = [
        paired.variance_of_errors(pair, (1.0, -1.0)) for pair in zip(first, second, strict=True)
    ]
    of_both = max(0.0, float(np.mean(single)) - total) / (count - 1)
    of_rows = max(total - min(of_both, of_seeds), 0.0)
    return with_variances(own, (of_seeds, pooled.freedom), of_rows, of_validation)


def with_variances(
    value: Value, of_seeds: tuple[float, int] | None, of_rows: float, of_validation: float
) -> Value:
    """Replace the parts of a value's variance.

    Args:
      value: the value, with the variance of its own seeds.
      of_seeds: variance between seeds and its degrees of freedom; None keeps that of the value.
      of_rows: variance between test examples.
      of_validation: variance between validation examples.
    """
    if of_seeds is None:
        assert value.deviation is not None
        of_seeds = value.deviation**2 - value.of_rows, int(value.freedom)
    examples = of_rows + of_validation
    deviation = math.sqrt(of_seeds[0] + examples)
    return value._replace(deviation=deviation, freedom=of_seeds[1], of_rows=examples)


def root(value: float) -> float:
    """Return the root of a debiased squared error, 0 for a negative one."""
    return math.sqrt(max(value, 0.0))


def variance_of_square(mean: float, variance: float) -> float:
    """Return the variance of the square of a normal variable whose mean square is `mean`.

    >>> variance_of_square(9.25, 0.25)
    9.125
    """
    return 4 * max(mean - variance, 0.0) * variance + 2 * variance**2


def benjamini_hochberg(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values so that the share of false findings is bounded.

    >>> benjamini_hochberg({"a": 0.01, "b": 0.5, "c": 0.03})
    {'b': 0.5, 'c': 0.045, 'a': 0.03}
    """
    adjusted: dict[str, float] = {}
    least, count = 1.0, len(p_values)
    for before, name in enumerate(sorted(p_values, key=lambda name: -p_values[name])):
        least = min(least, p_values[name] * count / (count - before))
        adjusted[name] = least
    return adjusted
