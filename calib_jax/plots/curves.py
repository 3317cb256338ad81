"""Curves of a binary classifier over its thresholds."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from calib_jax.core import texts
from calib_jax.plots import style

_HOVER_BOXES = 40


@style.drawn
def roc(
    false_positive_rate: Any,
    true_positive_rate: Any,
    *,
    auroc: Any = None,
    title: str | None = None,
    level: float | None = None,
    width: float = 4.0,
) -> style.Figure:
    """Draw one ROC curve, or several by name.

    Args:
      false_positive_rate: `[points]`, ascending, as in `metrics.ood_roc_curve`; or several by name.
      true_positive_rate: `[points]`, ascending; or several under the same names.
      auroc: value for the legend, a number or (value, low, high), or several by name; if None,
        the area under the drawn curve.
      title: title of the figure, such as the number of examples of both kinds.
      level: nominal coverage of the intervals of the AUROC, for the legend.
      width: width of the figure, in inches.
    """
    curves = _curves(false_positive_rate, true_positive_rate)
    areas = auroc if isinstance(auroc, Mapping) else dict.fromkeys(curves, auroc)
    by_name = auroc is None or isinstance(auroc, Mapping) or len(curves) == 1
    if set(areas) != set(curves) or not by_name:
        raise ValueError(f"auroc must have the names of the curves, {list(curves)}.")
    labels = []
    for name, (false, true) in curves.items():
        area = np.trapezoid(true, false) if areas[name] is None else areas[name]
        labels.append(f"{name}: AUROC {style.number('auroc', area)}".lstrip(": "))
    figure = style.canvas(width, width + 0.51 + (0.3 if title else 0.1))
    axes = figure.subplots()
    handles: list[Any] = []
    for place, ((false, true), label) in enumerate(zip(curves.values(), labels, strict=True)):
        look = {**style.curve_look(place), **style.curve_marks(place, len(false))}
        look |= {"label": label, "linewidth": 1.5}
        handles += axes.plot(false, true, clip_on=False, **look)
    _add_hover(axes, curves)
    axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.8, dashes=(1, 2))
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    if title:
        axes.set_title(style.wrapped(title, width - 0.6))
    triples = [style.triple("auroc", area) for area in areas.values() if area is not None]
    has_interval = any(low is not None for _, low, _ in triples)
    notes = [f"[ ]: {style.interval_label(level)}."] * (has_interval and level is not None)
    style.legend_below(figure, handles, width, " ".join([*notes, *texts.reasons(triples)]))
    return figure


def _add_hover(axes: style.Axes, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Attach the true positive rates to strips of the false positive rate."""
    edges = np.linspace(0, 1, _HOVER_BOXES + 1)
    for left, right in pairwise(edges):
        rate = (left + right) / 2
        heights = {name: np.interp(rate, false, true) for name, (false, true) in curves.items()}
        lines = [f"{name or 'true positive rate'}: {high:.3f}" for name, high in heights.items()]
        text = "\n".join([f"false positive rate {rate:.3f}", *lines])
        style.add_hover(axes, text, left=left, right=right)


def _curves(false: Any, true: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if not isinstance(false, Mapping):
        false, true = {"": false}, {"": true}
    if not isinstance(true, Mapping) or set(false) != set(true) or not false:
        raise ValueError("roc: give both rates as arrays, or both by the same names.")
    curves = {}
    for name in false:
        rates = {
            "false_positive_rate": style.vector("false_positive_rate", false[name]),
            "true_positive_rate": style.vector("true_positive_rate", true[name]),
        }
        style.of_same_length(**rates)
        for rate, values in rates.items():
            inside = (values >= 0) & (values <= 1 + 1e-6)
            if not np.all(inside) or np.any(np.diff(values) < 0):
                raise ValueError(
                    f"{rate} {name} must ascend and lie in [0, 1]: sort the points by threshold; a"
                    " NaN comes from a kind without examples."
                )
        curves[str(name)] = (rates["false_positive_rate"], rates["true_positive_rate"])
    return curves
