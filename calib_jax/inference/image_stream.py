r"""Metrics of pixels, with intervals over whole images, from one statistic per image.

    stream = inference.ImageStream({"mean_iou": metrics.mean_iou, "ece": metrics.ece})
    for logits, labels, weights in batches:      # [images, height, width, classes], ...
        stream.update(logits, labels, weights)
    stream.compute()                              pooled over all pixels
    stream.per_image()                            computed for every image, and averaged
    stream.estimates(key=jax.random.key(0))       pooled, with intervals by image

The pixels of an image depend on each other, so whole images are drawn. A statistic that is a
sum merges over images, so drawing images needs the statistic of each image and no pixel.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import arrays, checks
from calib_jax.core.statistics import Joint, Sums
from calib_jax.core.types import Labels, Logits, Weights
from calib_jax.core.values import InvalidValues, refuse, refuse_probabilities
from calib_jax.inference.bootstrap import INTERVALS
from calib_jax.inference.noise_bound import Estimate, of_samples, without_interval
from calib_jax.inference.resampling import resamples_on_host
from calib_jax.metrics import contract
from calib_jax.metrics.contract import AnyMetric, Members, Metrics


class ImageStream:
    """Accumulator of several metrics over images, which keeps one statistic per image.

    >>> from calib_jax import metrics
    >>> stream = ImageStream({"accuracy": metrics.accuracy})
    >>> logits = jnp.array([[[2.0, 1.0], [3.0, 0.0]], [[2.0, 1.0], [0.0, 9.0]]])
    >>> stream.update(logits, jnp.array([[0, 1], [0, 0]]), jnp.array([[1, 1], [1, 0]]))
    >>> stream.compute()
    {'accuracy': Array(0.667, dtype=float32)}
    >>> stream.per_image()
    {'accuracy': 0.75}

    Args:
      metrics: metrics by name, whose statistics are sums: metrics that rank examples, such as
        `aurc`, would need every pixel.
    """

    def __init__(self, metrics: AnyMetric | Metrics) -> None:
        self._members = contract.members_of(metrics)
        self.metrics = dict(self._members)
        self.reset()

    @property
    def stats(self) -> Joint:
        """The statistics of all images, in float64, with a leading axis of images."""
        if not self._parts:
            raise ValueError("the stream is empty: add images before computing values.")
        return jax.tree.map(lambda *parts: np.concatenate(parts), *self._parts)

    def update(self, logits: Any, labels: Any, weights: Any = None) -> None:
        """Add images; if values would make a metric NaN, raise and add nothing.

        Args:
          logits: `[images, ..., classes]`.
          labels: `[images, ...]`.
          weights: the shape of the labels; a pixel of weight 0, such as a void pixel, is absent.
        """
        arrays.with_auto_axes(self._update, logits, labels, weights)

    def _update(self, logits: Any, labels: Any, weights: Any) -> None:
        name = ", ".join(self.metrics)
        logits, labels, weights = arrays.batch_of(name, logits, labels, weights)
        if labels.ndim < 2:
            raise ValueError(
                f"{name}: images need labels of shape [images, pixels], got {labels.shape}."
            )
        if labels.size == 0:
            raise ValueError(f"{name}: there are no pixels, the labels have shape {labels.shape}.")
        stats, invalid = _stats_of_images(self._members, logits, labels, weights)
        for member, stat in stats.parts.items():
            if not isinstance(stat, Sums):
                raise ValueError(
                    f"{member} needs every pixel, and an ImageStream keeps sums over images: use"
                    f" Stream for {member}."
                )
        refuse(name, _over_images(invalid), (labels.size, logits.shape[-1]), weightless=True)
        refuse_probabilities(name, logits, weights)
        # An image of void pixels alone is none of the units that are drawn.
        pixels = tuple(range(1, labels.ndim))
        kept = slice(None) if weights is None else np.any(np.asarray(weights) > 0, axis=pixels)
        self._parts.append(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[kept], stats))

    def compute(self) -> dict[str, Any]:
        """Compute every metric over the pixels of all images."""
        pooled = jax.tree.map(lambda leaf: leaf.sum(axis=0), self.stats)
        return contract.values_of_stats(self.metrics, pooled)

    def reset(self) -> None:
        """Remove all images, to begin again with the same metrics."""
        self._parts: list[Joint] = []

    def per_image(self) -> dict[str, Any]:
        """Compute every metric of each image, and average over the images where it is defined.

        The calibration error of an image has the noise of its few pixels, so for a calibrated model
        the mean over images is larger than the pooled error.
        """
        values = _values_of_each(self._members, self.stats)
        return jax.tree.map(_mean_of_defined, values)

    @checks.needs_key
    def estimates(
        self, *, key: Any, num_resamples: int = 1000, level: float = 0.9, method: str = "valid"
    ) -> dict[str, Estimate]:
        """Compute every pooled metric with a bootstrap interval over images.

        An interval needs 10 images.

        Args:
          key: PRNG key of the drawn images.
          num_resamples: number of resamples, each of as many images as have a pixel, with
            replacement.
          level: the nominal coverage, a fraction.
          method: "valid" for percentiles, the interval of Clopper and Pearson for an accuracy or an
            error of 0 or 1, and no interval of a calibration error (`metric.biased`): noise raises
            it, and resampling raises it further, so percentiles lie too high. "percentile" or
            "basic" for an interval of every metric, see `interval`.
        """
        checks.one_of("method", method, ("valid", *INTERVALS))
        stats = self.stats
        num_images = len(jax.tree.leaves(stats)[0])
        counts = np.concatenate(resamples_on_host(key, num_images, num_resamples))
        sums = jax.tree.map(lambda leaf: np.tensordot(counts, leaf, axes=1), stats)
        samples, values = _values_of_each(self._members, sums), self.compute()
        return {
            name: without_interval(values[name])
            if method == "valid" and metric.biased
            else of_samples(metric, values[name], samples[name], level, method, num_images)
            for name, metric in self.metrics.items()
        }


@functools.partial(jax.jit, static_argnums=0)
def _stats_of_images(
    members: Members, logits: Logits, labels: Labels, weights: Weights | None
) -> tuple[Joint, InvalidValues]:
    def of_image(logits: Logits, labels: Labels, weights: Any) -> tuple[Joint, InvalidValues]:
        flat = labels.reshape(-1)
        weights = None if weights is None else weights.reshape(-1)
        return contract.checked_stats(members, logits.reshape(len(flat), -1), flat, weights)

    return jax.vmap(of_image)(logits, labels, weights)


def _over_images(invalid: InvalidValues) -> InvalidValues:
    """Sum the numbers of invalid pixels; keep the label of the first image with a wrong label."""
    first = jnp.argmax(invalid.wrong_label > 0)
    totals = jax.tree.map(jnp.sum, invalid)
    return totals._replace(a_wrong_label=invalid.a_wrong_label[first])


@functools.partial(jax.jit, static_argnums=0)
def _values_of_each(members: Members, stats: Joint) -> dict[str, Any]:
    return jax.vmap(lambda stat: contract.values_of_stats(dict(members), stat))(stats)


def _mean_of_defined(values: Any) -> Any:
    values = np.asarray(values, np.float64)
    defined = ~np.isnan(values)
    count = defined.sum(axis=0)
    mean = np.where(defined, values, 0).sum(axis=0) / np.where(count > 0, count, np.nan)
    return mean if mean.ndim else float(mean)
