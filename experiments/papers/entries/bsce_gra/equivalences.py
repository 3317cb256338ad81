"""What the weights of BSCE-GRA (Lin et al. 2025) have in common with the Brier score."""

import itertools
from typing import TYPE_CHECKING

import jax
import numpy as np

from calib_jax import losses
from calib_jax.plots import style
from experiments.papers.entries.bsce_gra.weights import weights_by_formula
from experiments.papers.entry import computed
from experiments.papers.judge import limits
from experiments.papers.judge.rules import every
from experiments.papers.judge.values import Value

if TYPE_CHECKING:
    import matplotlib.figure

NAMES = {"FL": "focal", "DFL": "dual focal", "gBS": "Brier"}


def weights(probabilities: np.ndarray, label: int = 0) -> dict[str, np.ndarray]:
    """Compute the weights of rows of probabilities, which may be 0, for one label."""
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities)
    return weights_by_formula(logits, np.full(len(probabilities), label))


def simplex(classes: int, steps: int) -> np.ndarray:
    """Return all rows of multiples of 1 / steps that sum to 1."""
    parts = itertools.product(range(steps + 1), repeat=classes - 1)
    rows = np.array([row for row in parts if sum(row) <= steps])
    return np.column_stack([rows, steps - rows.sum(axis=-1)]) / steps


def two_classes() -> dict[str, Value]:
    """Divide the Brier score of two classes by the focal weight, for gamma 2 and 1."""
    p = np.linspace(0, 1, 1_001)[:-1]
    rows = np.column_stack([p, 1 - p])
    brier = weights(rows)["gBS"]
    squared, linear = brier / (1 - p) ** 2, brier / (1 - p)
    with jax.enable_x64(True):
        library = np.asarray(losses.brier(np.log(rows[1:]), np.zeros(len(p) - 1, int)))
    return {
        "spread of the ratio at gamma 2": Value(float(np.ptp(squared)), rows=len(p)),
        "ratio at gamma 2": Value(float(squared.mean()), note="a factor 2"),
        "spread of the ratio at gamma 1": Value(float(np.ptp(linear)), rows=len(p)),
        "distance from the library's Brier score": Value(float(np.abs(library - brier[1:]).max())),
    }


def three_classes() -> dict[str, Value]:
    """Compare the order of dual focal weights and Brier scores on the simplex of three classes."""
    shown = np.array([[0.4, 0.3, 0.3], [0.51, 0.49, 0.0]])
    example = weights(shown)
    rows = simplex(3, 30)
    rows = rows[rows[:, 0] < 1]
    grid = weights(rows)
    above = np.triu_indices(len(rows), 1)
    gaps = {
        kind: (grid[kind][:, None] - grid[kind][None])[above].round(12) for kind in ("DFL", "gBS")
    }
    against = float(np.mean(gaps["DFL"] * gaps["gBS"] < 0))
    ratio = grid["DFL"] / grid["gBS"]
    return {
        "Brier score of (0.4, 0.3, 0.3)": Value(float(example["gBS"][0])),
        "Brier score of (0.51, 0.49, 0)": Value(float(example["gBS"][1])),
        "dual focal weight of (0.4, 0.3, 0.3)": Value(float(example["DFL"][0]), note="gamma 2"),
        "dual focal weight of (0.51, 0.49, 0)": Value(
            float(example["DFL"][1]), note="larger, though the Brier score is smaller"
        ),
        "share of pairs in opposite order": Value(against, rows=len(above[0])),
        "largest over least ratio": Value(float(ratio.max() / ratio.min()), rows=len(rows)),
    }


def brier_minus_error() -> dict[str, Value]:
    """Subtract the calibration error from the Brier score, on average over y and for single y."""
    generator = np.random.default_rng(0)
    average, identity, single = 0.0, 0.0, np.inf
    for classes in (2, 3, 10):
        truth = generator.dirichlet(np.ones(classes), 50)
        model = generator.dirichlet(np.ones(classes), 200)
        error = np.square(model[None] - truth[:, None]).sum(axis=-1)
        # [label, model]: the Brier score does not depend on the truth.
        score = np.square(model[None] - np.eye(classes)[:, None]).sum(axis=-1)
        gap = truth @ score - error
        average = max(average, float(np.ptp(gap, axis=1).max()))
        noise = np.sum(truth * (1 - truth), axis=-1)
        identity = max(identity, float(np.abs(gap - noise[:, None]).max()))
        one = score[None] - error[:, None]  # [truth, label, model]
        single = min(single, float(np.ptp(one, axis=-1).min()))
    return {
        "spread over p, averaged over y": Value(average, rows=150 * 200),
        "deviation from sum eta (1 - eta)": Value(identity, rows=150 * 200),
        "least spread over p, for a single y": Value(
            single, rows=50 * 15 * 200, note="the form for one sample depends on p"
        ),
    }


def axes() -> dict[str, Value]:
    """Move probability between two wrong classes of four, p_y fixed, and compare the weights."""
    rows = simplex(4, 20)
    rows = rows[(rows[:, 0] > 0) & (rows[:, 0] < 1)]
    before = weights(rows)
    focal = dual = 0.0
    unchanged = through = 0
    moves = 0
    for source, target in itertools.permutations((1, 2, 3), 2):
        moved = rows.copy()
        moved[:, source] -= 0.02
        moved[:, target] += 0.02
        allowed = rows[:, source] > 0.01
        # A swap of two probabilities is not a change.
        equal = np.isclose(moved[:, source], rows[:, target])
        chosen = allowed & ~equal
        after = weights(np.clip(moved, 0, 1))
        focal = max(focal, float(np.abs(after["FL"] - before["FL"])[chosen].max()))
        unchanged += int(np.sum(np.abs(after["gBS"] - before["gBS"])[chosen] < 1e-12))

        def lower(p: np.ndarray) -> np.ndarray:
            others = p[:, 1:]
            return np.where(others < p[:, :1] - 1e-12, others, 0).max(axis=-1)

        same = np.isclose(lower(moved), lower(rows)) & chosen
        dual = max(dual, float(np.abs(after["DFL"] - before["DFL"])[same].max()))
        changed = chosen & ~np.isclose(lower(moved), lower(rows))
        through += int(np.sum(np.abs(after["DFL"] - before["DFL"])[changed] > 1e-12))
        moves += int(chosen.sum())
    return {
        "largest change of the focal weight": Value(focal, rows=moves),
        "largest change of the dual focal weight where p_j stays": Value(dual, rows=moves),
        "moves that change the dual focal weight through p_j": Value(through, rows=moves),
        "moves that leave the Brier weight unchanged": Value(unchanged, rows=moves),
    }


AXES = every(
    limits.at_most(
        1e-12,
        "largest change of the focal weight",
        "largest change of the dual focal weight where p_j stays",
    ),
    limits.above(0, "moves that change the dual focal weight through p_j"),
    limits.at_most(0, "moves that leave the Brier weight unchanged"),
)


@style.drawn
def draw() -> "matplotlib.figure.Figure":
    """Draw the three weights of four classes over the split of the other three, p_y fixed."""
    figure = style.canvas(6.0, 3.6)
    panels = figure.subplots(2, 3)
    steps = 60
    split = simplex(3, steps)
    x, y = split[:, 1] + split[:, 2] / 2, split[:, 2] * np.sqrt(3) / 2
    for row, true in zip(panels, (0.4, 0.2), strict=True):
        probabilities = np.column_stack([np.full(len(split), true), (1 - true) * split])
        of_kind = weights(probabilities)
        for panel, (kind, name) in zip(row, NAMES.items(), strict=True):
            drawn = panel.tricontourf(
                x, y, of_kind[kind], levels=np.linspace(0.3, 1.7, 15), cmap="cividis"
            )
            panel.set(aspect="equal", xticks=[], yticks=[])
            panel.grid(visible=False)
            for side in panel.spines.values():
                side.set_visible(False)
            panel.set_title(f"{name}, p_y = {true:g}")
    figure.colorbar(drawn, ax=panels, shrink=0.7, ticks=[0.4, 0.8, 1.2, 1.6], label="weight u")
    return figure


ENTRY = computed(
    {
        "bsce-gra-fl-weight-is-brier-binary": (
            two_classes,
            limits.at_most(1e-9, "spread of the ratio at gamma 2"),
        ),
        "bsce-gra-dfl-weight-is-brier-ternary": (
            three_classes,
            limits.at_most(0, "share of pairs in opposite order"),
        ),
        "bsce-gra-brier-minus-error-depends-on-eta": (
            brier_minus_error,
            limits.at_most(1e-9, "spread over p, averaged over y"),
        ),
        "bsce-gra-weight-axes": (axes, AXES),
    },
    figures=lambda: {"weights": draw()},
)
