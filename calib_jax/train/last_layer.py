r"""What happens in the last layer: norms of its weights, of its inputs and of its gradients.

For an example with input $h$ of the last layer and $g = \partial \ell / \partial z$ of its loss
by its logits, the gradient of that layer's weights and bias is $g h^T$ and $g$, of the norm

$$\lVert g \rVert \sqrt{\lVert h \rVert^2 + 1},$$

so that the gradient of every single example costs no more than that of the batch. Cross-entropy
on its own makes the weights and the inputs grow without end once every example is answered right;
Mukhoti et al. 2020, section 4, compare the losses by these norms.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core.binning import class_sums
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, PyTree

HEAD = "head"
DECADES, PER_DECADE = (-8, 4), 8
_NUM_BINS = (DECADES[1] - DECADES[0]) * PER_DECADE
EDGES = [float(f"{edge:.4g}") for edge in np.logspace(*DECADES, _NUM_BINS + 1)]


@dataclasses.dataclass(frozen=True)
class LastLayer:
    """Statistics of the last layer, called "head", of a network that classifies whole inputs.

    Attributes:
      objective: whose gradients are looked at; what couples the examples of a batch couples the
        gradients here too.
    """

    objective: Any

    def stat(
        self, loss_state: PyTree, logits: Array, labels: Array, weights: Array, features: Any
    ) -> Sums:
        """Add up the norms of some examples; `features` are the inputs of the layer."""
        if features is None or logits.ndim != 2:
            raise ValueError(
                "the last layer can be looked at where a network gives one prediction an input and"
                f" hands out what its layer {HEAD!r} is given: train.linen(module, features=True)."
            )

        def summed(logits: Array) -> Array:
            rows = self.objective.value(loss_state, logits, labels, weights)
            return jnp.sum(jnp.where(weights > 0, rows, 0))

        features = features.astype(jnp.promote_types(features.dtype, jnp.float32))
        squared = jnp.sum(jnp.square(features.reshape(len(features), -1)), axis=1)
        gradient = jnp.linalg.norm(jax.grad(summed)(logits), axis=1) * jnp.sqrt(squared + 1)
        place = (jnp.log10(gradient) - DECADES[0]) * PER_DECADE
        cell = jnp.nan_to_num(jnp.clip(place, 0, _NUM_BINS - 1)).astype(jnp.int32)
        ones = jnp.ones_like(squared)
        norms = {"feature_norm": jnp.sqrt(squared), "last_gradient_norm": gradient}
        return Sums(
            {
                "weight": jnp.sum(weigh(ones, weights)),
                "histogram": class_sums(cell, weigh(ones, weights), _NUM_BINS),
                **{name: jnp.sum(weigh(values, weights)) for name, values in norms.items()},
            }
        )

    def means(self, stat: Sums) -> dict[str, float]:
        """Give the mean norms of the inputs and of the gradients."""
        weight = max(float(stat["weight"]), 1e-30)
        return {name: float(stat[name]) / weight for name in ("feature_norm", "last_gradient_norm")}

    def weight_norm(self, params: PyTree) -> float:
        """Compute the Euclidean norm of the layer's weights, without the bias."""
        return float(jnp.linalg.norm(params[HEAD]["kernel"]))


def histogram(stat: Sums) -> list[float]:
    """Give the examples between every two `EDGES`, by weight; those beyond are in the last bins."""
    return [float(count) for count in np.asarray(stat["histogram"])]
