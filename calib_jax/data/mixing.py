r"""Mixup: examples that lie between two others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.statistics import gather
from calib_jax.core.types import Array, AxisName, PyTree

__all__ = ["mixup", "partners"]


def mixup(alpha: float) -> Callable[..., tuple[PyTree, Array, Array]]:
    r"""Make the mixing of a training step: $\lambda x_a + (1 - \lambda) x_b$.

    $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$ is drawn once a batch, and the partner b of
    each example from the whole batch, over all devices.

    Args:
      alpha: $\alpha$; 0.2 to 1 in the papers.

    Returns:
      `(key of the step, keys of the examples, which are real, inputs, labels, axis_name)` ->
      mixed inputs, the partners' labels, $\lambda$.

    References:
      Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization.
      Thulasidasan et al. 2019, On Mixup Training: Improved Calibration.
    """
    checks.above("alpha", alpha, 0)

    def mix(
        key: Array, keys: Array, real: Array, inputs: PyTree, labels: Array, axis_name: AxisName
    ) -> tuple[PyTree, Array, Array]:
        share = jax.random.beta(jax.random.fold_in(key, 0x6D69), alpha, alpha)
        index = partners(keys, real, axis_name)
        everything = _all((inputs, labels), axis_name)
        others, other_labels = jax.tree.map(lambda leaf: leaf[index], everything)

        def between(one: Array, other: Array) -> Array:
            weight = share.astype(one.dtype)
            return weight * one + (1 - weight) * other

        return jax.tree.map(between, inputs, others), other_labels, share

    return mix


def partners(keys: Array, real: Array, axis_name: AxisName = None) -> Array:
    """Draw a partner for each example: a random permutation of the real ones.

    It is drawn from the examples' own keys, so it depends neither on the number of devices nor
    on rows that only fill the batch: those are paired among themselves.

    Args:
      keys: one for each local example.
      real: which of them count.
      axis_name: of the devices.

    Returns:
      For each local row its partner's place among the rows of all devices.
    """
    scores = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 0x7061), (2,)))(keys)
    scores = jnp.where(real[:, None], scores, 2.0)
    own, other = (jnp.argsort(column) for column in _all(scores, axis_name).T)
    paired = jnp.zeros_like(own).at[own].set(other)
    if axis_name is None:
        return paired
    start = jax.lax.axis_index(axis_name) * len(keys)
    return jax.lax.dynamic_slice_in_dim(paired, start, len(keys))


def _all(tree: Any, axis_name: AxisName) -> Any:
    return jax.tree.map(lambda leaf: gather(leaf, axis_name), tree)
