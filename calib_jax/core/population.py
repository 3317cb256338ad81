r"""The prediction that minimises the expected loss, when the class probabilities p are known.

Infinite data give the $q^*(p)$ that minimises $\sum_y p_y \ell(q, y)$ over the simplex. Where a
weight scales the gradient, it is the point at which the expected gradient is 0. With

$$-\frac{\partial}{\partial q_k} \sum_y p_y \ell(q, y) = \frac{p_k g_k(q)}{q_k} - c_k(q),$$

both satisfy $q_k = p_k g_k / (\lambda + c_k)$ for the $\lambda$ that makes the sum 1. The solver
repeats this step in logarithms, with a damping that a weight of power $\gamma$ needs. For focal
loss $g = (1 - q)^\gamma - \gamma q (1 - q)^{\gamma - 1} \log q$ and $c = 0$, so each equation has
one $q_k$, and Newton's method needs a few steps. All arrays are NumPy in float64.

References:
  Charoenphakdee et al. 2021, On Focal Loss for Class-Posterior Probability Estimation; Komisarenko
  and Kull 2024, Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from calib_jax.core import checks

_OfRows: TypeAlias = Callable[[np.ndarray], np.ndarray]
# The base b_y of a weight, its derivative by q_y, and the function of a [rows, classes] that
# computes for each k the sum of a_y db_y/dq_k over y other than k, if b_y depends on other q_k.
_Base: TypeAlias = tuple[np.ndarray, np.ndarray | float, _OfRows | None]
_BaseOf: TypeAlias = Callable[[np.ndarray, Any], _Base]

_LEAST = 1e-300
_STEPS, _STEADY, _EXACT = 300, 100, 1e-10
_LARGEST_INVERSE = 2.0  # beyond, p_k / l'(q_k) of inverse focal loss is not increasing in q_k
# Proper losses, or with a penalty that is 0 at p: p is the minimiser, also with these options.
_PROPER = ("cross_entropy", "brier", "mmce", "mdca", "dca", "esd")
_REASONS = {
    "adafocal": "its gamma follows the calibration on validation data during training",
    "class_adaptive_margin": "its weights follow the validation data during training",
    "logit_norm": "it does not determine the norm of the logits, which sets the confidence",
    "mmce_weighted": "at p its penalty is 0 only if half of the predictions are right",
    **dict.fromkeys(("flsc531", "flsc532"), "its gamma changes: use focal with the last gamma"),
}


def minimizer(loss: str, p: Any, **options: Any) -> np.ndarray:
    """Compute the minimiser or the stationary point of the expected loss; see `losses`."""
    p = np.asarray(p, np.float64)
    if not (p.ndim and np.all(p >= 0) and np.allclose(p.sum(axis=-1), 1, atol=1e-4)):
        raise ValueError(
            "p must be class probabilities [*batch, classes] with sum 1 over the last axis, got an"
            f" array of shape {p.shape}."
        )
    if loss in _REASONS:
        raise ValueError(f"{loss} has no population minimiser: {_REASONS[loss]}.")
    checks.one_of("loss with a population minimiser", loss, [*_PROPER, *_MINIMIZERS])
    p = np.maximum(p, _LEAST)
    rows = (p / p.sum(axis=-1, keepdims=True)).reshape(-1, p.shape[-1])
    solve, defaults = _MINIMIZERS.get(loss, (None, dict.fromkeys(("scale", "bandwidth"))))
    checks.known_options(loss if solve else f"the minimiser of {loss}", defaults, options)
    if solve:
        options = defaults | options
        rows = _weighted(rows, solve, options) if "weighting" in options else solve(rows, **options)
    return rows.reshape(p.shape)


def _weighted(p: np.ndarray, base_of: _BaseOf, options: dict[str, Any]) -> np.ndarray:
    r"""Solve for cross-entropy times $b^{\gamma / \beta}$, which "gradient" makes a constant.

    Iterate the damped step until no logarithm of a probability above 1e-12 moves.
    """
    thresholds, reading = options.get("thresholds", ()), options.get("reading", "norm")
    runner_up = options.get("runner_up", "below")
    checks.one_of("weighting", options["weighting"], ("loss", "gradient"))
    checks.one_of("reading", reading, ("norm", "sum"))
    checks.one_of("runner_up of a population minimiser", runner_up, ("below",))
    checks.ascending("thresholds", thresholds)
    # float() refuses one gamma for each row.
    gamma = np.asarray(options["gammas"] if "gammas" in options else float(options["gamma"]), float)
    # The sum of powers is the norm with beta = gamma.
    beta = gamma if reading == "sum" else options.get("beta", 1.0)
    checks.at_least("beta", beta, 1, " to be a norm")
    damping = 2 / (2 + gamma.max())
    if base_of is _sum_with_one:
        checks.between("gamma", gamma, 0, _LARGEST_INVERSE)
        damping = 1.0
    newton = base_of is _complement and not gamma.ndim
    # A few steps of Newton's method solve the equations of focal loss, from a row that is too flat.
    log_q = np.log(softmax(np.log(p) / (1 + gamma)) if newton else p)
    moving = np.arange(len(p))
    for number in range(_STEPS):
        q, part = np.exp(log_q[moving]), p[moving]
        of_q = gamma[np.searchsorted(thresholds, q, side="right")] if gamma.ndim else gamma
        power, (base, slope, across) = of_q / beta, base_of(q, beta)
        numerator, shift = part * base**power, None
        if options["weighting"] == "loss":
            pull = -part * np.log(np.maximum(q, _LEAST)) * power * base ** (power - 1)
            numerator = numerator - q * pull * slope
            shift = across and across(pull)
        rise = np.log(_normalized(np.maximum(numerator, _LEAST), shift)) - log_q[moving]
        if newton:
            move = _newton_move(q, base, gamma, rise, options["weighting"])
            distance = move / np.maximum(base, _EXACT)  # near 1, what moves is 1 - q
        else:
            # A weight with a jump, as that of FLSD, needs steps that shrink to 0.
            distance = move = damping * min(1.0, _STEADY / (number + 1)) * rise
        following = log_q[moving] + move
        log_q[moving] = following - np.log(np.exp(following).sum(axis=-1, keepdims=True))
        moving = moving[(np.abs(distance) * (q > _EXACT)).max(axis=-1) > _EXACT]
        if not len(moving):
            break
    return np.exp(log_q)


def _newton_move(
    q: np.ndarray, rest: np.ndarray, gamma: np.ndarray, rise: np.ndarray, weighting: str
) -> np.ndarray:
    r"""Compute the step of $\log q_k$ for $\log(p_k g(q_k)) - \log q_k = \log \lambda$.

    $g = (1 - q)^\gamma$, times $1 - \gamma q \log q / (1 - q)$ if the loss is weighted. One step
    keeps a quarter of 1 - q or more, since a larger one could overshoot.
    """
    odds = q / rest
    falls = gamma * odds  # -d log g / d log q
    if weighting == "loss":
        surprisal = -np.log(np.maximum(q, _LEAST))
        falls = falls + gamma * odds * (1 - surprisal / rest) / (1 + gamma * odds * surprisal)
    share = q / (1 + falls)
    level = (share * rise).sum(axis=-1, keepdims=True) / share.sum(axis=-1, keepdims=True)
    return np.minimum((rise - level) / (1 + falls), np.log((1 - rest / 4) / q))


def _normalized(numerator: np.ndarray, shift: np.ndarray | None) -> np.ndarray:
    """Compute numerator / (lambda + shift) with the lambda for which the sum is 1."""
    if shift is None:
        return numerator / numerator.sum(axis=-1, keepdims=True)
    # The sum falls in lambda; Newton's steps on its convex function rise from the left end.
    value = (numerator - shift).max(axis=-1, keepdims=True)
    for _ in range(100):
        ratio = numerator / (value + shift)
        slope = (ratio / (value + shift)).sum(axis=-1, keepdims=True)
        move = (ratio.sum(axis=-1, keepdims=True) - 1) / slope
        value = value + move
        if np.all(np.abs(move) <= 1e-15 * (np.abs(value) + np.max(shift))):
            break
    return numerator / (value + shift)


def _rest(q: np.ndarray) -> np.ndarray:
    """Compute 1 - q without cancellation where q is the largest of its row."""
    rest = 1 - q
    top = q.argmax(axis=-1)[:, None]
    others = q.copy()
    np.put_along_axis(others, top, 0, axis=-1)
    np.put_along_axis(rest, top, others.sum(axis=-1, keepdims=True), axis=-1)
    return np.maximum(rest, _LEAST)


def _complement(q: np.ndarray, beta: Any) -> _Base:
    return _rest(q), -1.0, None


def _sum_with_one(q: np.ndarray, beta: Any) -> _Base:
    return 1 + q, 1.0, None


def _gap_to_runner_up(q: np.ndarray, beta: Any) -> _Base:
    order = np.argsort(-q, axis=-1, kind="stable")
    more, less = order[:, :-1], order[:, 1:]  # neighbours in the order of q

    def moved(values: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        beside = np.zeros_like(values)
        np.put_along_axis(beside, target, np.take_along_axis(values, source, -1), axis=-1)
        return beside

    return _rest(q) + moved(q, less, more), -1.0, lambda a: moved(a, more, less)


def _distance(q: np.ndarray, beta: Any) -> _Base:
    r"""Compute $d_y = \sum_k |1_{k = y} - q_k|^\beta$."""
    rest, powers = _rest(q), q**beta
    total = powers.sum(axis=-1, keepdims=True)

    def across(a: np.ndarray) -> np.ndarray:
        return beta * q ** (beta - 1) * (a.sum(axis=-1, keepdims=True) - a)

    distance = rest**beta + _rest(powers / total) * total
    return distance, -beta * rest ** (beta - 1), across


def _label_smoothing(p: np.ndarray, alpha: float, spread: str) -> np.ndarray:
    checks.one_of("spread", spread, ("others", "all"))
    added = alpha / p.shape[-1] if spread == "all" else alpha * (1 - p) / (p.shape[-1] - 1)
    return (1 - alpha) * p + added


def _margins(p: np.ndarray, margin: float, alpha: float, class_reduction: str) -> np.ndarray:
    r"""Fill each class beyond the margin by alpha / K, up to the margin, from the largest ones.

    With M the largest probability, $q_k = \max(\min(p_k, M), \min(p_k + \alpha / K, M e^{-m}))$.
    """
    checks.one_of("class_reduction", class_reduction, ("mean", "sum"))
    added = alpha / p.shape[-1] if class_reduction == "mean" else alpha

    def filled(largest: np.ndarray) -> np.ndarray:
        return np.maximum(np.minimum(p, largest), np.minimum(p + added, largest * np.exp(-margin)))

    return filled(_bisected(filled, np.zeros((len(p), 1)), p.max(axis=-1, keepdims=True)))


def _bisected(row: _OfRows, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Find the value of each row, between two values, at which the sum of a monotone row is 1."""
    rises = row(high).sum(axis=-1, keepdims=True) > row(low).sum(axis=-1, keepdims=True)
    for _ in range(100):
        middle = (low + high) / 2
        beyond = (row(middle).sum(axis=-1, keepdims=True) > 1) == rises
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return high


def _entropy_regularized(p: np.ndarray, scale: float, gamma: float) -> np.ndarray:
    r"""Solve $p_k / q_k - s \log q_k = \lambda$: $q_k = p_k / (s \omega(\lambda/s + \log(p_k/s)))$.

    $\omega$ is Wright's function, $\omega(x) + \log \omega(x) = x$.
    """
    from scipy.special import wrightomega

    if gamma:
        raise ValueError("entropy_regularized has a known minimiser for gamma = 0 only.")
    if not scale:
        return p

    def of(value: np.ndarray) -> np.ndarray:
        return p / (scale * wrightomega(value / scale + np.log(p / scale)))

    # All q_k are at most 1 at the upper end, and one is at least 1 / K at the lower end.
    low, high = np.zeros((len(p), 1)), np.full((len(p), 1), p.shape[-1] + scale * 700.0)
    q = of(_bisected(of, low, high))
    return q / q.sum(axis=-1, keepdims=True)


_LOSS, _GRADIENT = {"weighting": "loss"}, {"weighting": "gradient"}
_FLSD = {"thresholds": (0.2, 0.5), "gammas": (5.0, 3.0, 3.0)}
_BRIER = {"gamma": 2.0, "beta": 2.0, "reading": "norm"}
_DUAL = {"gamma": 5.0, "runner_up": "below"}
_MARGIN = {"margin": 10.0, "alpha": 0.1, "class_reduction": "mean"}
# The base of a weight, or a solver, and the options with their defaults.
_MINIMIZERS: Mapping[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "focal": (_complement, {"gamma": 3.0} | _LOSS),
    "fl_gra": (_complement, {"gamma": 3.0} | _GRADIENT),
    "inverse_focal": (_sum_with_one, {"gamma": 1.0} | _LOSS),
    "flsd53": (_complement, _FLSD | _LOSS),
    "flsd532": (_complement, _FLSD | _LOSS | {"gammas": (5.0, 3.0, 2.0)}),
    "flsd53_gra": (_complement, _FLSD | _GRADIENT),
    "dual_focal": (_gap_to_runner_up, _DUAL | _LOSS),
    "dfl_gra": (_gap_to_runner_up, _DUAL | _GRADIENT),
    "bsce": (_distance, _BRIER | _LOSS),
    "bsce_gra": (_distance, _BRIER | _GRADIENT),
    "bsce_adaptive_gra": (_distance, _FLSD | {"beta": 2.0} | _GRADIENT),
    "label_smoothing": (_label_smoothing, {"alpha": 0.05, "spread": "others"}),
    "margin_smoothing": (_margins, _MARGIN),
    "max_suppression": (_margins, _MARGIN | {"margin": 0.0}),
    "entropy_regularized": (_entropy_regularized, {"scale": 1.0, "gamma": 0.0}),
}


def rows_of(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return held-out logits `[rows, classes]` and labels in float64; raise for bad ones."""
    z, y = np.asarray(logits, np.float64), np.asarray(labels)
    has_rows = z.ndim > 1 and z.size and y.shape == z.shape[:-1]
    if not (has_rows and np.isfinite(z).all() and np.all((y >= 0) & (y < z.shape[-1]))):
        raise ValueError(
            "a prediction needs finite logits [*batch, classes], and labels [*batch] between 0 and"
            f" classes - 1, got the shapes {z.shape} and {y.shape}."
        )
    return z.reshape(-1, z.shape[-1]), y.ravel().astype(int)


def temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Fit the temperature of least NLL; raise where no temperature is best."""
    from scipy.optimize import brentq

    def slope(log_t: float) -> float:
        return float(slopes(logits, labels, log_t).mean())

    low, high = np.log(1e-3), np.log(1e3)
    if slope(low) <= 0 or slope(high) >= 0:
        raise ValueError(
            "these logits have no best temperature: they are no better than chance, or every"
            " prediction is right. Give more held-out rows or another network."
        )
    return float(np.exp(brentq(slope, low, high, xtol=1e-10)))


def slopes(logits: np.ndarray, labels: np.ndarray, log_t: float) -> np.ndarray:
    """Compute the residual of each row, E_p z - z_y over T, which falls as T rises."""
    z = logits * np.exp(-log_t)
    above_true = z - np.take_along_axis(z, labels[:, None], -1)
    return np.asarray((softmax(z) * above_true).sum(axis=-1))


def softmax(z: np.ndarray) -> np.ndarray:
    """Compute the softmax over the last axis."""
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def predicted_logits(logits: np.ndarray, fitted: float, loss: str, **options: Any) -> np.ndarray:
    """Compute T log q*(softmax(z / T)), the logits that training with the loss would give."""
    q = minimizer(loss, softmax(logits / fitted), **options)
    return np.asarray(fitted * np.log(np.maximum(q, _LEAST)))
