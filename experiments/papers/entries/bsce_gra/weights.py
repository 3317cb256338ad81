"""Loss and gradient weighting of BSCE-GRA (Lin et al. 2025): forms, gradients, implicit losses."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats

from calib_jax import losses
from experiments.papers.entries.mukhoti.gradient_scale import GAMMAS, scale
from experiments.papers.entry import computed
from experiments.papers.judge import limits
from experiments.papers.judge.rules import decided, every
from experiments.papers.judge.values import Value

Loss = Callable[..., jax.Array]

# The losses of the paper, by the name of their uncertainty.
WEIGHTED: dict[str, Loss] = {
    "FL": lambda z, y, weighting: losses.focal(z, y, gamma=2.0, weighting=weighting),
    "DFL": lambda z, y, weighting: losses.dual_focal(z, y, gamma=2.0, weighting=weighting),
    "gBS": lambda z, y, weighting: losses.generalized_brier(z, y, weighting=weighting),
}


def weights_by_formula(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the three uncertainties of every row in NumPy, with gamma = beta = 2."""
    rows = np.arange(len(labels))
    p = scipy.special.softmax(logits, axis=-1)
    true = p[rows, labels]
    lower = np.where(p < true[:, None], p, 0).max(axis=-1)
    distance = p.copy()
    distance[rows, labels] -= 1
    return {
        "FL": (1 - true) ** 2,
        "DFL": (1 - true + lower) ** 2,
        "gBS": np.sum(np.square(distance), axis=-1),
    }


def _rows(classes: int, size: int = 400) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(classes)
    logits = 2 * generator.standard_normal((size, classes))
    return logits, generator.integers(classes, size=size)


def _gradients(loss: Loss, weighting: str) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def total(z: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = loss(z, y, weighting)
        return jnp.sum(values), values

    def both(z: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient, values = jax.grad(total, has_aux=True)(z, y)
        return values, gradient

    return jax.jit(both)


def unified_form() -> dict[str, Value]:
    """Compare focal and dual focal loss with u times cross-entropy, by autodiff of the formula."""
    logits, labels = _rows(10)

    def plain(z: jax.Array, y: jax.Array, kind: str) -> jax.Array:
        log_p = jax.nn.log_softmax(z)
        p, mark = jnp.exp(log_p), jnp.arange(z.shape[-1])[None] == y[:, None]
        true = jnp.sum(jnp.where(mark, p, 0), axis=-1, keepdims=True)
        lower = jnp.max(jnp.where(p < true, p, 0), axis=-1)
        base = 1 - true[:, 0] + (lower if kind == "DFL" else 0)
        return base**2 * -jnp.sum(jnp.where(mark, log_p, 0), axis=-1)

    worst = {}
    with jax.enable_x64(True):
        for kind in ("FL", "DFL"):
            ours = _gradients(WEIGHTED[kind], "loss")(logits, labels)
            formula = _gradients(plain, kind)
            for name, one, other in zip(
                ("values", "gradients"), ours, formula(logits, labels), strict=True
            ):
                gap = np.abs(np.asarray(one) - np.asarray(other))
                worst[f"{kind}, {name}"] = Value(
                    float(gap.max() / np.abs(np.asarray(other)).max()), rows=len(labels)
                )
    return worst


def gradient_is_scaled() -> dict[str, Value]:
    """Divide gradients of GRA losses by u times those of cross-entropy, in two precisions."""
    logits, labels = _rows(10)
    generator = np.random.default_rng(1)
    inputs = generator.standard_normal((40, 6))
    parameters = [generator.standard_normal((6, 16)), generator.standard_normal((16, 10))]
    deviations = {}
    for dtype in ("float32", "float64"):
        worst = 0.0
        with jax.enable_x64(dtype == "float64"):
            z = logits.astype(dtype)
            weights = weights_by_formula(z.astype(np.float64), labels)
            base = np.asarray(
                _gradients(lambda a, b, _: losses.cross_entropy(a, b), "")(z, labels)[1]
            )

            def network(theta: Any, x: Any) -> jax.Array:
                return jax.nn.relu(x @ theta[0]) @ theta[1]

            theta = [layer.astype(dtype) for layer in parameters]
            x, y = inputs.astype(dtype), labels[:40]
            outputs = np.asarray(network([jnp.asarray(layer) for layer in theta], x))
            of_network = weights_by_formula(outputs.astype(np.float64), y)
            for kind, loss in WEIGHTED.items():
                gradient = np.asarray(_gradients(loss, "gradient")(z, labels)[1])
                expected = weights[kind][:, None] * base
                worst = max(worst, _relative(gradient, expected))

                def mean(theta: Any, u: Any, loss: Loss, x: Any, y: Any) -> jax.Array:
                    z = network(theta, x)
                    if u is None:
                        return jnp.mean(loss(z, y, "gradient"))
                    return jnp.mean(u * losses.cross_entropy(z, y))

                u = jnp.asarray(of_network[kind].astype(dtype))
                slope = jax.jit(jax.grad(functools.partial(mean, loss=loss, x=x, y=y)))
                one, other = slope(theta, None), slope(theta, u)
                for layer, wanted in zip(one, other, strict=True):
                    flat = np.asarray(layer).reshape(1, -1), np.asarray(wanted).reshape(1, -1)
                    worst = max(worst, _relative(*flat))
        deviations[f"largest relative deviation in {dtype}"] = Value(
            worst, rows=len(labels), note="logits, and both layers of a network; FL, DFL, gBS"
        )
    return deviations


def _relative(rows: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest distance of a row from the expected one, over the latter's norm."""
    rows, expected = rows.astype(np.float64), expected.astype(np.float64)
    distance = np.linalg.norm(rows - expected, axis=-1)
    return float(np.max(distance / np.linalg.norm(expected, axis=-1)))


def alignment() -> dict[str, Value]:
    """Correlate the ratio of gradient norms to those of cross-entropy with u, by ranks."""
    values = {}
    with jax.enable_x64(True):
        plain = _gradients(lambda z, y, _: losses.cross_entropy(z, y), "")
        programs = {
            (kind, weighting): _gradients(loss, weighting)
            for kind, loss in WEIGHTED.items()
            for weighting in ("gradient", "loss")
        }
        for classes in (2, 10, 100):
            logits, labels = _rows(classes)
            base = np.linalg.norm(plain(logits, labels)[1], axis=-1)
            weights = weights_by_formula(logits, labels)
            for (kind, weighting), program in programs.items():
                norms = np.linalg.norm(program(logits, labels)[1], axis=-1)
                correlation = scipy.stats.spearmanr(norms / base, weights[kind]).statistic
                values[f"{kind}, {weighting} weighting, K = {classes}"] = Value(
                    float(correlation), rows=len(labels)
                )
    return values


ALIGNED = decided(
    "holds if every rank correlation is 1 (to 1e-9) for gradient weighting and below 1 (by 1e-4)"
    " for loss weighting; does not hold otherwise",
    lambda values: all(
        v.value > 1 - 1e-9 if "gradient weighting" in name else v.value < 1 - 1e-4
        for name, v in values.items()
    ),
)


def implicit_loss() -> dict[str, Value]:
    """Integrate u(p)/p for u of p_y alone, and test whether the other fields have a potential."""
    logits, labels = _rows(5, 40)
    nodes, masses = np.polynomial.legendre.leggauss(60)

    def potential(z: np.ndarray) -> np.ndarray:
        """Integrate (1-t)^2 / t from p_y to 1, over log t so that the integrand is smooth."""
        low = scipy.special.log_softmax(z, axis=-1)[np.arange(len(z)), labels]
        middle, half = low / 2, -low / 2
        t = middle[:, None] + half[:, None] * nodes
        return half * np.sum(masses * (1 - np.exp(t)) ** 2, axis=-1)

    step, slope = 1e-5, np.empty_like(logits)
    for k in range(logits.shape[-1]):
        change = step * (np.arange(logits.shape[-1]) == k)
        slope[:, k] = (potential(logits + change) - potential(logits - change)) / (2 * step)
    asymmetry = {}
    with jax.enable_x64(True):
        focal = np.asarray(_gradients(WEIGHTED["FL"], "gradient")(logits, labels)[1])
        for kind, loss in WEIGHTED.items():
            for classes in (2, 5):
                z, y = _rows(classes, 40)

                def field(z: jax.Array, y: jax.Array, loss: Loss = loss) -> jax.Array:
                    return jax.grad(lambda a: loss(a[None], y[None], "gradient")[0])(z)

                jacobian = np.asarray(jax.jit(jax.vmap(jax.jacrev(field)))(z, y))
                gap = np.abs(jacobian - jacobian.transpose(0, 2, 1))
                asymmetry[kind, classes] = float(gap.max())
    return {
        "largest deviation of the gradient, u of p_y": Value(
            float(np.max(np.abs(slope - focal))), rows=slope.size, note="central differences"
        ),
        **{
            f"asymmetry of the Jacobian, {kind}, K = {classes}": Value(gap, rows=40)
            for (kind, classes), gap in asymmetry.items()
        },
    }


IMPLICIT = decided(
    "holds if the gradient of the integral agrees to 1e-8 for u of p_y alone, and the Jacobian of"
    " the gradient field is symmetric to 1e-8 for every weight; does not hold, for the weights"
    " whose Jacobian is not symmetric, otherwise",
    lambda values: all(v.value <= 1e-8 for v in values.values()),
)


def not_monotone() -> dict[str, Value]:
    """Count the interior maxima of g(p, gamma), and compare them with g(0) = 1."""
    grid = np.concatenate(
        [np.geomspace(1e-9, 1e-3, 5_000)[:-1], np.linspace(1e-3, 1 - 1e-9, 50_000)]
    )
    maxima, heights, shown = [], [], {}
    for gamma in GAMMAS:
        g = scale(grid, gamma)
        turns = (g[1:-1] > g[:-2]) & (g[1:-1] > g[2:])
        maxima.append(int(np.sum(turns)))
        heights.append(float(g.max()))
        shown[f"maximum at gamma {gamma:g}"] = Value(
            float(g.max()), note=f"at p = {grid[np.argmax(g)]:.4f}"
        )
    return {
        "most interior maxima": Value(max(maxima), rows=len(GAMMAS) * len(grid)),
        "least maximum minus g(0)": Value(min(heights) - 1, rows=len(GAMMAS)),
        **shown,
    }


ENTRY = computed(
    {
        "bsce-gra-unified-form": (
            unified_form,
            limits.at_most(1e-9, "FL, values", "FL, gradients", "DFL, values", "DFL, gradients"),
        ),
        "bsce-gra-g-not-monotone": (
            not_monotone,
            every(
                limits.at_most(1, "most interior maxima"),
                limits.above(0, "least maximum minus g(0)"),
            ),
        ),
        "bsce-gra-gradient-is-u-times-ce": (
            gradient_is_scaled,
            every(
                limits.at_most(1e-6, "largest relative deviation in float32"),
                limits.at_most(1e-12, "largest relative deviation in float64"),
            ),
        ),
        "bsce-gra-scaling-strictly-aligned": (alignment, ALIGNED),
        "bsce-gra-implicit-loss": (implicit_loss, IMPLICIT),
    }
)
