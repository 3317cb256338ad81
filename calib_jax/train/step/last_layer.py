r"""Compute the norms of the weights, inputs and gradients of the last layer.

For an example with last-layer input $h$ and loss gradient $g = \partial \ell / \partial z$ with
respect to its logits, the gradients of the layer's weights and bias are $g h^T$ and $g$. Their
joint norm is

$$\lVert g \rVert \sqrt{\lVert h \rVert^2 + 1},$$

so per-example gradient norms cost no more than the gradient of the batch. With cross-entropy alone
the weights and the inputs grow without bound once every example is classified correctly;
Mukhoti et al. 2020, section 4, compare losses by these norms.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core.binning import class_sums
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, PyTree

HEAD = "head"
DECADES, PER_DECADE = (-8, 4), 8
_NUM_BINS = (DECADES[1] - DECADES[0]) * PER_DECADE
EDGES = [float(f"{edge:.4g}") for edge in np.logspace(*DECADES, _NUM_BINS + 1)]


@dataclasses.dataclass(frozen=True)
class LastLayer:
    """Statistics of the last layer, named "head", of a network with one prediction per input.

    Attributes:
      objective: the loss whose gradients are measured. If it couples the examples of a batch, the
        gradients are coupled too.
    """

    objective: Any

    def stat(
        self, loss_state: PyTree, logits: Array, labels: Array, weights: Array, features: Any
    ) -> Sums:
        """Sum the norms over examples; `features` are the inputs of the layer."""
        if logits.ndim != 2:
            raise ValueError(
                "last-layer statistics need one prediction for each input, logits [batch, classes],"
                f" and the network returned {logits.shape}: leave last_layer at None (diagnose at"
                " False in a config)."
            )
        if features is None:
            raise ValueError(
                f"last-layer statistics need the inputs of the layer {HEAD!r}, and the forward pass"
                f" returned none: name the network's last layer {HEAD!r}, and build the forward"
                " pass with train.linen or train.nnx and features=True."
            )

        def summed(logits: Array) -> Array:
            rows = self.objective.value(loss_state, logits, labels, weights)
            return jnp.sum(jnp.where(weights > 0, rows, 0))

        features = at_least_float32(features)
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
        """Compute the mean norms of the inputs and of the gradients."""
        weight = max(float(stat["weight"]), 1e-30)
        return {name: float(stat[name]) / weight for name in ("feature_norm", "last_gradient_norm")}

    def weight_norm(self, params: PyTree) -> float:
        """Compute the Euclidean norm of the layer's weights, without the bias."""
        return float(jnp.linalg.norm(params[HEAD]["kernel"]))


def histogram(stat: Sums) -> list[float]:
    """Return the weight between adjacent `EDGES`; the outer bins include values beyond them."""
    return [float(count) for count in np.asarray(stat["histogram"])]
