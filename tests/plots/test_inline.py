"""A figure as an element of a page: one element, own identifiers, values in place, equal bytes."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from calib_jax import plots

from .tables import table

NAMED = "<model> & co, nano#123abc"


def drawn(name="first"):
    figure = plots.reliability_diagram(table(weight=[9.0, 0, 30, 60]), title=NAMED, level=0.9)
    return plots.inline_svg(figure, name, description=NAMED)


def test_an_element_without_references_to_anything_outside():
    svg = drawn()
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == NAMED
    identifiers = [each.attrib["id"] for each in root.iter() if "id" in each.attrib]
    assert len(identifiers) == len(set(identifiers))
    assert all(each.startswith("first-") for each in identifiers)
    referred = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg))
    assert referred == set(identifiers)
    assert "http" not in svg
    assert "<style" not in svg  # it would style the whole page
    texts = [each.text for each in root.iter("text")]
    assert NAMED in texts
    # Colors in attributes would not follow the page.
    assert not re.search(r"(fill|stroke)=\"#", svg)
    assert "var(--c0072b2, #0072b2)" in svg


def test_values_stand_over_their_bins():
    root = ET.fromstring(drawn())
    boxes = [each for each in root.iter("rect") if each.attrib.get("class") == "hover"]
    first = boxes[:3]  # of the diagram; three more cover the histogram
    assert len(boxes) == 6
    assert [box[0].text.splitlines()[0] for box in first] == [
        "bin 0.000 to 0.200",
        "bin 0.500 to 0.600",
        "bin 0.600 to 1.000",
    ]
    assert "n = 9, 9.1% of all" in first[0][0].text
    assert "accuracy 0.3000 [0.1000, 0.6000]" in first[0][0].text
    left = np.array([float(box.attrib["x"]) for box in first])
    width = np.array([float(box.attrib["width"]) for box in first])
    unit = (left[2] + width[2] - left[0]) / 1.0
    np.testing.assert_allclose((left - left[0]) / unit, [0, 0.5, 0.6], atol=1e-3)
    np.testing.assert_allclose(width / unit, [0.2, 0.1, 0.4], atol=1e-3)


def test_equal_figures_give_equal_text_and_names_are_checked():
    assert drawn() == drawn()
    with pytest.raises(ValueError, match="name must consist of letters"):
        drawn('a"b')


def test_every_epoch_or_some_of_many_have_their_values():
    epochs = np.arange(1.0, 351.0)
    figure = plots.training_curves({"nll": {"focal": 1 / epochs}}, epochs)
    root = ET.fromstring(plots.inline_svg(figure, "curves", description="curves"))
    texts = [each.text for each in root.iter("title")]
    assert 50 < len(texts) <= 100
    assert texts[-1] == f"nll, epoch 350\nfocal: {1 / 350:.4g}"
