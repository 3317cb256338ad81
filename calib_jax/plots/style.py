"""Style that all figures share: colors, sizes, text, and figures without pyplot.

The colors are those of Okabe and Ito, which color-blind readers can distinguish. Hatching, line
styles or markers repeat what colors show, so that it survives greyscale printing.
"""

import functools
import io
import re
import textwrap
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias

import numpy as np

from calib_jax.core import checks, texts
from calib_jax.core.arrays import as_array

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

_Options = ParamSpec("_Options")

Figure: TypeAlias = "matplotlib.figure.Figure"  # imported when the first figure is drawn
Axes: TypeAlias = "matplotlib.axes.Axes"

Triple: TypeAlias = tuple[float, float | None, float | None]  # value, low, high

# Okabe and Ito, Color universal design, 2008. Their yellow is unreadable on white.
BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#777777"
# Three more for curves, from Paul Tol's muted scheme and a brown.
WINE = "#882255"
OLIVE = "#999933"
BROWN = "#7F4F24"

# Ten of each, so that ten curves differ in color, line style and marker.
_CURVE_COLORS = (BLUE, VERMILLION, GREEN, BLACK, PURPLE, ORANGE, SKY, WINE, OLIVE, BROWN)
_DASHES = ((9, 2), (7, 1.5, 1, 1.5, 1, 1.5), (3, 1), (12, 3, 3, 3), (1, 3), (5, 4))
_CURVE_DASHES = ("-", "--", "-.", ":", *((0, dashes) for dashes in _DASHES))
_CURVE_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
MARKS_PER_CURVE = 8

# Hatched for wrong or miscalibrated, plain for right.
PLAIN: dict[str, Any] = {"facecolor": SKY, "edgecolor": BLUE, "linewidth": 0.6}
HATCHED = {**PLAIN, "facecolor": "#FBE3D3", "edgecolor": VERMILLION, "hatch": "////"}
# Without a fill, because this gap lies inside the bar of the accuracy, which stays visible.
HATCHED_BACK = {**PLAIN, "facecolor": "none", "edgecolor": GREEN, "hatch": "\\\\\\\\"}

_SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.xmargin": 0.02,
    "figure.dpi": 120,
    "font.size": 9,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def settings(**more: Any) -> AbstractContextManager[None]:
    """Apply matplotlib's defaults and this subpackage's settings within a context."""
    import matplotlib

    chosen: Any = {**dict(matplotlib.rcParamsDefault), **_SETTINGS, **more}
    # Setting the backend here would choose it for the caller.
    del chosen["backend"]
    return matplotlib.rc_context(chosen)


def drawn(function: Callable[_Options, Figure]) -> Callable[_Options, Figure]:
    """Wrap a function to draw with this subpackage's settings and keep the caller's unchanged."""

    @functools.wraps(function)
    def draw(*args: _Options.args, **options: _Options.kwargs) -> Figure:
        from matplotlib.text import Text

        with settings():
            figure = function(*args, **options)
            for each in figure.findobj(Text):
                each.set_text(drawable(each.get_text()))
            # The first draw creates the ticks; do it now, while these settings apply.
            figure.draw_without_rendering()
        return figure

    return draw


def drawable(text: str) -> str:
    r"""Escape what no font and no SVG file has, and the dollar signs of what is no formula.

    >>> drawable("T$^2$\x1b[2J"), drawable("$\\frac$")
    ('T$^2$\\x1b[2J', '\\$\\frac\\$')
    """
    text = texts.printable(text)
    if "$" in text:
        from matplotlib.mathtext import MathTextParser

        parser: Any = MathTextParser("path")
        try:
            for line in text.splitlines():
                parser.parse(line)
        except ValueError:
            return re.sub(r"(?<!\\)\$", r"\\$", text)
    return text


def canvas(width: float, height: float) -> Figure:
    """Create a figure, sized in inches, that notebooks can show without pyplot."""
    import matplotlib.figure

    checks.above("width", width, 0)
    figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
    # Notebooks call this method; without it they show figures only if pyplot is loaded.
    vars(figure)["_repr_png_"] = functools.partial(_png, figure)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with settings():
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def curve_look(place: int) -> dict[str, Any]:
    """Return color and line style of a curve; no two of the first hundred curves share both."""
    num = len(_CURVE_COLORS)
    return {
        "color": _CURVE_COLORS[place % num],
        "linestyle": _CURVE_DASHES[(place + place // num) % num],
    }


def curve_marks(place: int, points: int) -> dict[str, Any]:
    """Return the marker of a curve, placed at about eight points, or all points of a short curve.

    Args:
      place: the index of the curve, as in `curve_look`.
      points: the number of points of the curve.
    """
    step = max(-(-points // MARKS_PER_CURVE), 1)
    return {
        "marker": _CURVE_MARKERS[place % len(_CURVE_MARKERS)],
        "markevery": (place % step, step),  # curves that coincide show their markers in turn
        "markersize": 4,
    }


class HoverBox(NamedTuple):
    """A box of a figure with the text that a page shows under the pointer.

    Attributes:
      axes: the axes whose data coordinates the edges use.
      text: lines of text.
      left, right, bottom, top: the edges; None is the edge of the axes.
    """

    axes: Any
    text: str
    left: float | None = None
    right: float | None = None
    bottom: float | None = None
    top: float | None = None


def add_hover(axes: Axes, text: str, **edges: float | None) -> None:
    """Attach a text to a box of a figure; `inline_svg` shows it under the pointer.

    Args:
      axes: the axes whose data coordinates the edges use.
      text: lines of text.
      **edges: left, right, bottom and top of the box; None is the edge of the axes.
    """
    box = HoverBox(axes, texts.printable(text), **edges)
    vars(axes.figure).setdefault("hover_boxes", []).append(box)


def interval_label(level: float | None) -> str:
    """Name an interval by its level, if the level is known.

    >>> interval_label(0.9), interval_label(None)
    ('90% interval', 'interval')
    """
    if level is None:
        return "interval"
    checks.level(level)
    return f"{100 * level:g}% interval"


_LINE, _LINES = 0.17, 3  # inches of a line of a legend; lines for which figures have room


def legend_below(figure: Figure, handles: Iterable[Any], width: float, note: str = "") -> None:
    """Place the legend below the axes, in as many columns as fit; a long one makes room for itself.

    Args:
      figure: figure of the handles.
      handles: artists to list, once per label.
      width: width of the figure, in inches.
      note: text above the legend, because two texts below the axes would overlap.
    """
    unique: dict[str, Any] = {}
    for handle in handles:
        unique.setdefault(wrapped(handle.get_label(), width - 1), handle)
    longest = max(len(line) for label in unique for line in label.splitlines())
    rows, columns = grid_of(len(unique), max(int(characters(width) / (longest + 7)), 1))
    lines = rows * max(label.count("\n") + 1 for label in unique)
    figure.set_figheight(figure.get_figheight() + _LINE * max(0, lines - _LINES))
    figure.legend(
        handles=list(unique.values()),
        labels=list(unique),
        loc="outside lower center",
        ncols=columns,
        title=wrapped(note, width) or None,
        title_fontsize=8,
        alignment="left",
    )


def label_grid(axes: np.ndarray, panels: int, *, x: str, y: str = "") -> None:
    """Label the outer axes of a grid and remove the axes beyond the last panel.

    Args:
      axes: `[rows, columns]`.
      panels: the number of panels.
      x: label below the last panel of every column.
      y: label beside the first panel of every row, if not empty.
    """
    columns = axes.shape[1]
    for place, panel in enumerate(axes.flat):
        if place >= panels:
            panel.remove()
            continue
        if y and place % columns == 0:
            panel.set_ylabel(y)
        if place + columns >= panels:  # even if the last row is not full
            panel.set_xlabel(x)
            panel.tick_params(labelbottom=True)


def grid_of(panels: int, columns: int) -> tuple[int, int]:
    """Compute rows and columns: the fewest rows, filled as evenly as possible."""
    checks.at_least("columns", columns, 1)
    rows = -(-panels // columns)
    return rows, -(-panels // rows)


def characters(width: float) -> float:
    """Estimate how many letters of a legend fit into a width in inches."""
    return 14 * width


class _Wrapper(textwrap.TextWrapper):
    """Break lines at spaces and after _, /, . and - inside a word, but never inside a formula."""

    wordsep_re = re.compile(r"((?<!\\)\$[^$]*(?<!\\)\$|\s+|(?<=[\w][_/.\-])(?=\w))")


def wrapped(text: str, width: float) -> str:
    """Wrap a text to a width in inches; break long names after _, /, . or -, but no formula.

    >>> print(wrapped("of adaptive_debiased_rms_error", 1.3))
    of adaptive_
    debiased_rms_error
    """
    letters = max(int(characters(width)), 8)
    lines = drawable(text).splitlines() or [""]
    return "\n".join(
        _Wrapper(letters, break_long_words="$" not in line).fill(line) for line in lines
    )


def number(name: str, value: Any) -> str:
    """Format a number, or a value with its interval (value, low, high); errors name the argument.

    >>> number("ece", 0.0834)
    '0.083'
    >>> number("ece", (0.0834, 0.079, 0.0881)), number("ece", (0.07, 0.079, 0.0881))
    ('0.083 [0.079, 0.088]', '0.070† [0.079, 0.088]')
    """
    middle, low, high = triple(name, value)
    text = f"{middle:.3f}{texts.mark(middle, low, high)}"
    return text if low is None or high is None else f"{text} [{low:.3f}, {high:.3f}]"


def triple(name: str, value: Any) -> Triple:
    """Convert a number, (value, low, high) or an object with these fields to floats."""
    if hasattr(value, "low") and hasattr(value, "high"):
        value = (value.value, value.low, value.high)
    try:
        numbers = np.array(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold numbers, got {value!r}.") from None
    if numbers.shape not in ((), (3,)) or not np.all(np.isfinite(numbers)):
        raise ValueError(f"{name} must be a finite number or (value, low, high), got {value!r}.")
    if numbers.shape == ():
        return float(numbers), None, None
    middle, low, high = numbers.tolist()
    if low > high:
        raise ValueError(f"{name} has a low above its high: the order is (value, low, high).")
    return middle, low, high


def count(total: float) -> str:
    """Format a number of examples, which is fractional for fractional weights.

    >>> count(10000.0), count(2.5)
    ('10,000', '2.5')
    """
    return f"{total:,.0f}" if float(total).is_integer() else f"{total:,.4g}"


def vector(name: str, values: Any, what: str = "one value a row") -> np.ndarray:
    """Convert values to a float64 array of one axis, or raise."""
    array = np.asarray(as_array(values)).astype(np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, {what}, got shape {array.shape}.")
    return array


def of_same_length(**arrays: np.ndarray) -> None:
    """Raise if arrays differ in length or are empty."""
    if len({len(array) for array in arrays.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(array)}" for name, array in arrays.items())
        raise ValueError(f"lengths must agree: {sizes}.")
    name, array = next(iter(arrays.items()))
    if not array.size:
        raise ValueError(f"{name} is empty: there is nothing to draw.")
