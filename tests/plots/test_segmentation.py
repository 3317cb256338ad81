"""Pictures of the predictions of one image: which pixel has which color."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import plots
from calib_jax.plots.segmentation import colored

LABELS = np.array([[0, 1, 2], [2, 1, 9]])
PREDICTED = np.array([[0, 2, 2], [2, 1, 0]])
WEIGHTS = np.array([[1, 1, 1], [0, 1, 0]])
IMAGE = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
CONFIDENCE = np.linspace(0.3, 1, 6).reshape(2, 3)


def drawn(**options):
    return plots.segmentation(IMAGE, LABELS, PREDICTED, CONFIDENCE, weights=WEIGHTS, **options)


def test_every_panel_shows_its_pixels():
    figure = drawn(class_names=("sky", "road"), title="an image")
    image, label, prediction, confidence, error = figure.axes
    np.testing.assert_array_equal(image.images[0].get_array(), IMAGE)
    palette = colored(np.arange(3))
    shown = label.images[0].get_array()
    for row, column in np.ndindex(2, 3):
        void = not WEIGHTS[row, column]
        expected = [255] * 3 if void else palette[LABELS[row, column]]
        np.testing.assert_array_equal(shown[row, column], expected)
        color = error.images[0].get_array()[row, column].tolist()
        wrong = LABELS[row, column] != PREDICTED[row, column]
        assert color == ([255] * 3 if void else [213, 94, 0] if wrong else [225] * 3)
    np.testing.assert_array_equal(prediction.images[0].get_array(), palette[PREDICTED])
    np.testing.assert_array_equal(confidence.images[0].get_array(), CONFIDENCE)
    assert error.get_title("left") == "error (25.0% wrong)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sky", "road", "2"]


def test_pixels_line_up_across_the_panels():
    figure = drawn()
    figure.draw_without_rendering()
    bottoms = [axes.get_window_extent().y0 for axes in figure.axes]
    np.testing.assert_allclose(bottoms, bottoms[0])


def test_the_colors_of_classes_differ():
    palette = colored(np.arange(20)).astype(int)
    distances = np.abs(palette[:, None] - palette).sum(axis=-1)
    assert distances[~np.eye(20, dtype=bool)].min() > 60
    np.testing.assert_array_equal(colored(np.array([20])), colored(np.array([0])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": IMAGE[..., 0]}, r"image must be \(2, 3, 3\), got \(2, 3\)"),
        ({"labels": LABELS[0]}, r"labels must be \[height, width\], got \(3,\)"),
        ({"predicted": PREDICTED.T}, r"predicted must be \(2, 3\), got \(3, 2\)"),
        ({"predicted": PREDICTED - 1}, "classes must be at least 0, got -1"),
        ({"labels": LABELS / 1}, "labels must be classes, integers, got float64"),
        ({"image": IMAGE + 200.0}, r"image must lie in \[0, 1\], got 200 to "),
        ({"confidence": CONFIDENCE * np.nan}, r"confidence must lie in \[0, 1\], got nan to nan"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, message):
    arrays = {
        **{"image": IMAGE, "labels": LABELS, "predicted": PREDICTED},
        **{"confidence": CONFIDENCE, **change},
    }
    with pytest.raises((ValueError, TypeError), match=message):
        plots.segmentation(**arrays)


def test_an_image_without_a_class_is_drawn():
    nothing = np.zeros((1, 1), int)
    figure = plots.segmentation(
        np.zeros((1, 1, 3), np.uint8), nothing, nothing, nothing + 0.5, weights=nothing
    )
    assert figure.axes[4].get_title("left") == "error (nan% wrong)"


def test_a_confidence_in_percent_is_refused_in_half_precision():
    labels = np.zeros((2, 2), int)
    percent = jnp.full((2, 2), 90, jnp.bfloat16)
    with pytest.raises(ValueError, match=r"confidence must lie in \[0, 1\], got 90 to 90"):
        plots.segmentation(np.zeros((2, 2, 3)), labels, labels, percent)
