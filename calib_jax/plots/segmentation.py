"""Figures of the predictions of one image whose pixels have classes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax.core.arrays import as_array
from calib_jax.plots import style

_PANELS = ("image", "label", "prediction", "confidence", "error")
_WIDTH = 2.4  # width of a panel, in inches
_NONE = (255, 255, 255)
_RIGHT, _WRONG = (225, 225, 225), (213, 94, 0)


@style.drawn
def segmentation(
    image: Any,
    labels: Any,
    predicted: Any,
    confidence: Any,
    *,
    weights: Any = None,
    class_names: Sequence[str] = (),
    title: str = "",
) -> style.Figure:
    """Draw an image, its label map, the prediction, the confidence and the wrong pixels.

    Pixels of weight 0 have no class, and are white in the label and in the error.

    Args:
      image: `[height, width, 3]`, bytes, or numbers in [0, 1].
      labels: `[height, width]`, the true classes.
      predicted: `[height, width]`, the predicted classes.
      confidence: `[height, width]`, the probability of the predicted class.
      weights: `[height, width]`; None gives all pixels weight 1.
      class_names: one name for each class, for the legend; numbers by default.
      title: title of the figure.
    """
    image, labels, predicted = (np.asarray(as_array(each)) for each in (image, labels, predicted))
    confidence = np.asarray(as_array(confidence), np.float64)
    present = np.ones(labels.shape, bool) if weights is None else np.asarray(as_array(weights)) > 0
    shape = labels.shape
    expected = {"image": (*shape, 3), "predicted": shape, "confidence": shape, "weights": shape}
    arrays = image, predicted, confidence, present
    for (name, wanted), array in zip(expected.items(), arrays, strict=True):
        if array.shape != wanted or labels.ndim != 2:
            raise ValueError(
                f"segmentation: with labels [height, width] {shape}, {name} must be {wanted}, got"
                f" {array.shape}."
            )
    if labels.dtype.kind not in "biu" or predicted.dtype.kind not in "biu":
        raise TypeError("segmentation: labels and predicted must be classes, integers.")
    most = 255 if image.dtype.kind in "biu" else 1 + 1e-6  # matplotlib would draw more in white
    if not np.all((image >= 0) & (image <= most)):
        raise ValueError("segmentation: image must be bytes, or numbers in [0, 1].")
    if not np.all((confidence >= 0) & (confidence <= 1 + 1e-6), where=present):
        raise ValueError("segmentation: confidence must lie in [0, 1].")
    shown = sorted({*np.unique(labels[present]).tolist(), *np.unique(predicted).tolist()})
    wrong = np.where((labels == predicted)[..., None], _RIGHT, _WRONG)
    panels = {
        "image": image if most == 255 else image.astype(np.float32),
        "label": np.where(present[..., None], colored(labels), _NONE).astype(np.uint8),
        "prediction": colored(predicted),
        "error": np.where(present[..., None], wrong, _NONE).astype(np.uint8),
    }
    height = _WIDTH * shape[0] / shape[1] + 1.2
    figure = style.canvas(_WIDTH * len(_PANELS), min(height, 12))
    share = float(np.mean((labels != predicted)[present])) if present.any() else math.nan
    for axes, name in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        axes.set_axis_off()
        if name == "confidence":
            drawn = axes.imshow(confidence, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
            # Below the panel, which keeps its position beside the others.
            below = axes.inset_axes((0, -0.09, 1, 0.04))
            figure.colorbar(drawn, cax=below, orientation="horizontal")
        else:
            axes.imshow(panels[name], interpolation="nearest")
        axes.set_title(f"error ({share:.1%} wrong)" if name == "error" else name)
    if title:
        figure.suptitle(style.wrapped(title, _WIDTH * len(_PANELS)), fontsize=10, x=0.01, ha="left")
    _legend(figure, shown, class_names)
    return figure


def colored(classes: np.ndarray | np.integer | int) -> np.ndarray:
    """Return a color for each class number, `[..., 3]` bytes; 20 colors, then they repeat.

    The hue turns by the golden angle, so neighboring numbers differ; lightness has three levels.
    """
    from matplotlib.colors import hsv_to_rgb

    numbers = np.arange(20)
    hue = np.modf(numbers * 0.618034)[0]
    saturation = np.array([0.85, 0.9, 0.5])[numbers % 3]
    lightness = np.array([0.9, 0.6, 0.75])[numbers % 3]
    table = hsv_to_rgb(np.stack([hue, saturation, lightness], axis=1))
    return np.round(255 * table).astype(np.uint8)[classes % len(numbers)]


def _legend(figure: style.Figure, shown: Sequence[int], class_names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = []
    for number in shown:
        name = class_names[number] if 0 <= number < len(class_names) else str(number)
        color = colored(number) / 255
        handles.append(Patch(facecolor=tuple(color.tolist()), label=name))
    style.legend_below(figure, handles, _WIDTH * len(_PANELS))
