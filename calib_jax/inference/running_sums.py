r"""Bounds of the errors without bins: `ecce` and `ks_error`, from running sums.

The path is $m_k = \frac1n \sum_{i \le k} (c_i - a_i)$ in the order of the confidences, with
$m_0 = 0$, at the last example of each confidence. It is the true path d plus noise e, and both
errors are a largest difference D of two points of the path, or of a point and 0. The noise is drawn
as $\frac1n \sum_{i \le k} \xi_i (c_i - a_i)$ with random signs $\xi_i$, one for each cluster.

*Lower end.* Wherever D is attained, the true error is at least D minus the noise there. The place
depends on the data. With probability of some .95 it is among the points within $\kappa = 2.5
\sigma$ of the extreme values of the path, with $\sigma^2 = \frac1{n^2} \sum_i (c_i - a_i)^2$: 2.5
is the .95 quantile of the range of a Brownian motion. So the largest noise among those points is
subtracted.

*Upper end.* The true error is the difference of d between two fixed points, and D is at least the
difference of m between them. So it is the upper end of a mean, with at most the variance of all
examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Integer

from calib_jax.core.types import Array
from calib_jax.inference.draws import hits_in_chunks
from calib_jax.inference.evaluation import Evaluation, in_order
from calib_jax.inference.normal import Clusters, Column, signs

_ENTRIES = 2**22  # of draws at a time
_RANGE = 2.5  # the .95 quantile of the range of a Brownian motion on [0, 1]

Paths = Float[np.ndarray, "draws points"]
Draws = Float[np.ndarray, " draws"]
Values = Callable[[Any], Any]

PATHS: dict[str, Values] = {
    "ecce": lambda path: np.ptp(path, axis=-1),
    "ks_error": lambda path: np.max(np.abs(path), axis=-1),
}


class PathNoise(NamedTuple):
    """An error of the path, with draws of what noise does to it.

    Attributes:
      value: the measured error.
      null: draws of the error of a calibrated model.
      excess: draws of how much noise can increase the error.
      moment: the mean square of the residuals, divided by n.
      num_rows: n, the number of examples.
    """

    value: float
    null: Draws
    excess: Draws
    moment: float
    num_rows: int


def path_noise(
    name: str, evaluation: Evaluation, excluded_class: int | None, key: Array, num_resamples: int
) -> PathNoise:
    """Compute the error called `name` and draw its noise, on the host in float64."""
    confidence, hit = evaluation.top_label(excluded_class)
    order = in_order(confidence, hit)
    confidence, hit = confidence[order], hit[order]
    cluster = None if evaluation.cluster is None else evaluation.cluster[order]
    residual, size = confidence - hit, PATHS[name]
    ends = np.flatnonzero(np.diff(confidence, append=np.inf))
    n = len(hit)
    path = _paths(residual[None], ends)[0]
    value = float(size(path))
    spread = np.sum(confidence * (1 - confidence))
    moment = float(np.maximum(np.sum(np.square(residual)), spread)) / n**2
    near = _near(name, path, value, _RANGE * np.sqrt(moment))
    key_of_hits, key_of_signs = jax.random.split(key)
    null, excess = [], []
    for flips in _signs(key_of_signs, cluster, n, num_resamples):
        noise = _paths(flips * residual, ends)
        excess.append(near(noise))
        if cluster is not None:
            null.append(size(noise))
    if cluster is None:
        for hits in hits_in_chunks(key_of_hits, confidence, num_resamples):
            null.append(size(_paths(confidence - hits, ends)))
    return PathNoise(value, np.concatenate(null), np.concatenate(excess), moment, n)


def _paths(residuals: Float[np.ndarray, "draws rows"], ends: Integer[np.ndarray, " ends"]) -> Paths:
    """Compute the running sums at the last example of each confidence, from 0 on."""
    sums = np.cumsum(residuals, axis=1)[:, ends] / residuals.shape[1]
    return np.pad(sums, ((0, 0), (1, 0)))


def _near(name: str, path: Column, value: float, margin: float) -> Values:
    """Return the function that computes the largest noise at the places that may attain D."""
    if name == "ks_error":
        up, down = path >= value - margin, path <= margin - value
        ends = np.any(up), np.any(down)
        return lambda noise: np.max(
            [
                np.max(sign * noise[:, near], axis=1)
                for sign, near, some in zip((1, -1), (up, down), ends, strict=True)
                if some
            ],
            axis=0,
        )
    up, down = path >= np.max(path) - margin, path <= np.min(path) + margin
    return lambda noise: np.max(noise[:, up], axis=1) - np.min(noise[:, down], axis=1)


def _signs(
    key: Array, cluster: Clusters | None, num_rows: int, num_resamples: int
) -> Iterator[Float[np.ndarray, "draws rows"]]:
    """Draw a sign for each example, the same within a cluster, some draws at a time."""
    num_signs = num_rows if cluster is None else int(np.max(cluster)) + 1
    step = max(1, min(num_resamples, _ENTRIES // num_rows))
    for number, start in enumerate(range(0, num_resamples, step)):
        count = min(step, num_resamples - start)
        drawn = signs(jax.random.fold_in(key, number), count, num_signs)
        yield drawn if cluster is None else drawn[:, cluster]
