r"""Dirichlet calibration: a linear map of the log-probabilities, $z' = W \log p + b$.

What a Dirichlet distribution of p for every class leads to, and the K-class generalisation of
beta calibration. $K^2 + K$ parameters: with many classes or few examples it needs its penalties.
"""

import functools
from typing import Any, NamedTuple

import jax
from jaxtyping import Float

from calib_jax.calibrators import contract, linear, matrix
from calib_jax.calibrators.contract import State
from calib_jax.core import checks
from calib_jax.core.types import Array, Logits, Number


class DirichletParams(NamedTuple):
    """A matrix W and an intercept b for each class."""

    matrix: Float[Array, "classes classes"]
    intercept: Float[Array, " classes"]
    state: State


Params = DirichletParams


def fit(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    off_diagonal: Number = 0.0,
    intercept: Number = 0.0,
    max_iterations: Number = 1000,
) -> Params:
    r"""Minimise the mean NLL of $\mathrm{softmax}(W \log p + b)$, by L-BFGS from W = I, b = 0.

    Matrix scaling of $\log p = \mathrm{logsoftmax}(z)$, penalties and all: unlike that of the
    logits it does not change when a row of logits is shifted.

    Args:
      logits: `[*batch, classes]`, of examples that the model was not trained on.
      labels: the true classes.
      weights: weight 0 means absent, weight k means k copies.
      off_diagonal: $\lambda$ of the off-diagonal and intercept regularisation (ODIR).
      intercept: $\mu$ of it.
      max_iterations: after which the state is `stopped`.

    References:
      Kull et al. 2019, Beyond temperature scaling: obtaining well-calibrated multiclass
      probabilities with Dirichlet calibration.
    """
    checks.at_least("off_diagonal", off_diagonal, 0)
    checks.at_least("intercept", intercept, 0)
    checks.at_least("max_iterations", max_iterations, 1)
    examples = contract.examples("dirichlet", logits, labels, weights, mixes_classes=True)
    return _fit(examples, off_diagonal, intercept, max_iterations)


_fit = jax.jit(functools.partial(matrix.fit_features, Params, jax.nn.log_softmax))


def apply(params: Any, logits: Any) -> Logits:
    """Compute the logits W log p + b."""
    contract.check_params("dirichlet", Params, params)
    num_classes = len(params.intercept)
    return contract.on_rows("dirichlet", _apply, params, logits, num_classes, mixes_classes=True)


def _apply(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    return linear.scores(params.matrix, params.intercept, jax.nn.log_softmax(logits))


__all__ = ["Params", "apply", "fit"]
