"""The factor g(p, gamma) by which focal loss scales the gradient of cross-entropy: its shape."""

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
import scipy.special

from calib_jax import losses
from calib_jax.plots import style
from experiments.papers.entry import computed
from experiments.papers.judge import limits
from experiments.papers.judge.rules import every
from experiments.papers.judge.values import Value

if TYPE_CHECKING:
    import matplotlib.figure

GAMMAS = (1.0, 2.0, 3.0, 4.0, 5.0)
# Dense near both ends, where g changes fastest for large gammas.
GRID = np.concatenate([np.geomspace(1e-9, 0.01, 2_000)[:-1], np.linspace(0.01, 1 - 1e-9, 20_000)])


def scale(p: Any, gamma: float) -> Any:
    """Compute g from its formula, in float64."""
    rest = 1 - p
    return rest**gamma - gamma * p * rest ** (gamma - 1) * np.log(p)


def threshold(gamma: float) -> float:
    """Find the p below 1 at which g is 1."""
    return scipy.optimize.brentq(lambda p: scale(p, gamma) - 1, 0.01, 0.9, xtol=1e-14)


def thresholds() -> dict[str, Value]:
    """Count the sign changes of g - 1 on (0, 1), and find where they are."""
    tested = (*GAMMAS, 1.5, 2.5, 10.0, 20.0, 50.0)
    changes, wrong = [], 0
    for gamma in tested:
        sign = np.sign(scale(GRID, gamma) - 1)
        changes.append(int(np.sum(sign[1:] != sign[:-1])))
        wrong += int(sign[0] < 0 or sign[-1] > 0)
    return {
        "most sign changes": Value(max(changes), rows=len(tested) * len(GRID)),
        "fewest sign changes": Value(min(changes)),
        "gammas where g does not start above 1 and end below it": Value(wrong, rows=len(tested)),
        **{f"p0 at gamma {gamma:g}": Value(threshold(gamma)) for gamma in GAMMAS},
    }


ONE_THRESHOLD = every(
    limits.at_most(1, "most sign changes"),
    limits.above(0, "fewest sign changes"),
    limits.at_most(0, "gammas where g does not start above 1 and end below it"),
)


def by_lambert(p0: float) -> float:
    """Compute gamma by the published closed form, with Lambert's function."""
    a = (1 - p0) / (p0 * np.log(p0))
    y = (1 - p0) ** (1 - a) / (p0 * np.log(p0)) * np.log1p(-p0)
    return float(np.real(a + scipy.special.lambertw(-y, -1) / np.log1p(-p0)))


def gammas_for_thresholds() -> dict[str, Value]:
    """Evaluate g on both sides of p0 with the gamma that the proposition assigns to p0."""
    tested = np.linspace(0.01, 0.49, 49)
    at, lowest, highest, closed = 0.0, np.inf, -np.inf, 0.0
    for p0 in tested:
        gamma = float(losses.gamma_for(p0))
        closed = max(closed, abs(by_lambert(float(p0)) - gamma))
        at = max(at, abs(float(scale(p0, gamma)) - 1))
        lowest = min(lowest, float(np.min(scale(GRID[p0 - 1e-4 > GRID], gamma))))
        highest = max(highest, float(np.max(scale(GRID[p0 + 1e-4 < GRID], gamma))))
    rows = len(tested) * len(GRID)
    return {
        "largest |g(p0) - 1|": Value(at, rows=len(tested)),
        "least g - 1 below p0": Value(lowest - 1, rows=rows),
        "largest g - 1 above p0": Value(highest - 1, rows=rows),
        "largest distance from the closed form": Value(closed, rows=len(tested)),
        "gamma(0.2)": Value(float(losses.gamma_for(0.2))),
        "gamma(0.25)": Value(float(losses.gamma_for(0.25))),
        "gamma(0.5)": Value(float(losses.gamma_for(0.5)), note="0 from p0 = 0.5 on"),
    }


LAMBERT = every(
    limits.at_most(1e-6, "largest |g(p0) - 1|"),
    limits.above(0, "least g - 1 below p0"),
    limits.at_most(-1e-12, "largest g - 1 above p0"),
)


def policy(p: np.ndarray) -> np.ndarray:
    """Compute g with the gamma of FLSD-53."""
    return np.where(p < 0.2, scale(p, 5.0), scale(p, 3.0))


def policy_53() -> dict[str, Value]:
    """Find where g of FLSD-53 lies on the wrong side of 1, with 0.2 as the threshold."""
    low, high = threshold(5.0), threshold(3.0)
    grid = np.linspace(1e-4, 1 - 1e-4, 100_000)
    wrong = np.where(grid < 0.2, policy(grid) < 1, policy(grid) > 1)
    expected = ((grid > low) & (grid < 0.2)) | ((grid >= 0.2) & (grid < high))
    return {
        "share of (0, 1) on the wrong side": Value(
            float(np.mean(wrong)), rows=len(grid), note=f"({low:.4f}, 0.2) and [0.2, {high:.4f})"
        ),
        "points outside these two intervals on the wrong side": Value(
            int(np.sum(wrong & ~expected)), rows=len(grid)
        ),
        "g(0.2, 5)": Value(float(scale(0.2, 5.0))),
        "g(0.2, 3)": Value(float(scale(0.2, 3.0))),
        "g(0.25, 3)": Value(float(scale(0.25, 3.0))),
    }


def steepness() -> dict[str, Value]:
    """Compute the steepest fall of g, and where g is 0.5, for every gamma."""
    grid = np.linspace(1e-4, 1 - 1e-4, 100_001)
    steepest, half = [], []
    for gamma in GAMMAS:
        steepest.append(float(np.max(-np.gradient(scale(grid, gamma), grid))))
        half.append(scipy.optimize.brentq(lambda p, gamma=gamma: scale(p, gamma) - 0.5, 0.1, 0.999))
    return {
        "least rise of the steepest slope": Value(float(np.min(np.diff(steepest))), rows=5),
        "least fall of the p where g is 0.5": Value(float(np.min(-np.diff(half))), rows=5),
        **{
            f"steepest slope at gamma {gamma:g}": Value(-slope)
            for gamma, slope in zip(GAMMAS, steepest, strict=True)
        },
        **{
            f"p where g is 0.5 at gamma {gamma:g}": Value(p)
            for gamma, p in zip(GAMMAS, half, strict=True)
        },
    }


@style.drawn
def draw() -> "matplotlib.figure.Figure":
    """Draw g over p for several gammas, with the threshold of each, and g of FLSD-53."""
    figure = style.canvas(6.4, 3.4)
    left, right = figure.subplots(1, 2, sharey=True)
    p = np.linspace(1e-4, 1, 1_000)[:-1]
    for place, gamma in enumerate(GAMMAS):
        left.plot(p, scale(p, gamma), label=f"gamma {gamma:g}", **style.curve_look(place))
        left.plot(threshold(gamma), 1, "o", markersize=3, color=style.curve_look(place)["color"])
    left.legend(loc="upper right", ncols=2)
    left.set(xlabel="p, the probability of the true class", ylabel="g(p, gamma)")
    left.set_title("points: g is 1")
    for part in (p[p < 0.2], p[p >= 0.2]):
        right.plot(part, policy(part), color=style.BLACK)
    for low, high in ((threshold(5.0), 0.2), (0.2, threshold(3.0))):
        right.axvspan(low, high, color=style.VERMILLION, alpha=0.25, linewidth=0)
    right.set(xlabel="p, the probability of the true class")
    right.set_title("FLSD-53; shaded: wrong side of 1")
    for axes in (left, right):
        axes.axhline(1, color=style.GREY, linewidth=0.8)
        axes.set_ylim(top=1.8)
    return figure


ENTRY = computed(
    {
        "mukhoti-g-threshold-exists": (thresholds, ONE_THRESHOLD),
        "mukhoti-prop2-lambert-gamma": (gammas_for_thresholds, LAMBERT),
        "mukhoti-flsd53-policy-g": (
            policy_53,
            limits.at_most(0, "share of (0, 1) on the wrong side"),
        ),
        "mukhoti-larger-gamma-steeper-fall": (
            steepness,
            limits.above(
                0, "least rise of the steepest slope", "least fall of the p where g is 0.5"
            ),
        ),
    },
    figures=lambda: {"g": draw()},
)
