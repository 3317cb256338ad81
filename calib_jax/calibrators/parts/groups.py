"""Sort the examples of a binary question by probability and join equal probabilities."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool

from calib_jax.calibrators.isotonic import near_ties_merged
from calib_jax.core.binning import run_sums
from calib_jax.core.types import Array, Vector


class Groups(NamedTuple):
    """Groups of equal probability in ascending order; unused groups come last, with weight 0.

    Attributes:
      lowest: the smallest probability of a group; infinity in unused groups.
      highest: the largest probability of a group; -infinity in unused groups.
      weight: the weight of a group.
      hits: the weight of the examples of target 1 in a group.
    """

    lowest: Vector
    highest: Vector
    weight: Vector
    hits: Vector

    @property
    def used(self) -> Bool[Array, " groups"]:
        """Mark the groups that hold examples."""
        return self.weight > 0

    def repeated(self, part: Vector) -> Vector:
        """Replace the values of unused groups by the value of the last used group."""
        last = jnp.maximum(jnp.sum(self.used) - 1, 0)
        return jnp.where(self.used, part, part[last])


def grouped(p: Vector, target: Vector, weight: Vector) -> Groups:
    """Sort the examples of positive weight and join examples of equal probability.

    A group holds the probabilities less than 1e-6 (in float64 1e-15) above its lowest probability.
    """
    p = jnp.where(weight > 0, p, jnp.inf)
    p, target, weight = lax.sort((p, target, weight), num_keys=1)
    first = near_ties_merged(p)
    index = jnp.cumsum(jnp.append(False, first[1:] > first[:-1]))
    mass, hits = (run_sums(index, part) for part in (weight, weight * target))
    lowest = jnp.full_like(p, jnp.inf).at[index].min(p)
    highest = jnp.full_like(p, -jnp.inf).at[index].max(p)
    return Groups(lowest, highest, mass, hits)
