"""Figures as files and as elements of a page: equal bytes, nothing left behind, values in place."""

import hashlib
import os
import pickle
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import pytest

from calib_jax import plots

from . import table

ROOT = Path(__file__).resolve().parents[2]
ENDINGS = ("png", "svg", "pdf")

ALONE = """
import hashlib, sys
from tests.plots import table
from calib_jax import plots
assert "matplotlib" not in sys.modules, "importing plots imports matplotlib"
figure = plots.reliability_diagram(table())
for path in sys.argv[1:]:
    plots.save(figure, path)
    print(hashlib.sha256(open(path, "rb").read()).hexdigest())
assert "matplotlib.pyplot" not in sys.modules, "a picture imports pyplot"
"""


@pytest.mark.slow
def test_equal_pictures_are_equal_files_in_any_process(tmp_path):
    def saved(figure, name):
        paths = [tmp_path / f"{name}.{ending}" for ending in ENDINGS]
        for path in paths:
            plots.save(figure, path)
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]

    figure = plots.reliability_diagram(table())
    first = saved(figure, "first")
    assert saved(figure, "again") == first
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        assert saved(plots.reliability_diagram(table()), "other settings") == first
    paths = [str(tmp_path / f"alone.{ending}") for ending in ENDINGS]
    environment = {**os.environ, "PYTHONHASHSEED": "123", "SOURCE_DATE_EPOCH": "0"}
    alone = subprocess.run(
        [sys.executable, "-c", ALONE, *paths],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.split() == first


def test_the_files_are_what_their_endings_say(tmp_path):
    figure = plots.reliability_diagram(table())
    for ending, start in (("PNG", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / f"picture.{ending}"
        plots.save(figure, str(path))
        assert path.read_bytes().startswith(start)
    # Conferences refuse Type 3 fonts.
    assert b"/Type3" not in path.read_bytes()


def test_a_notebook_shows_the_figure_and_pickle_keeps_it():
    figure = plots.reliability_diagram(table())
    shown = figure._repr_png_()
    assert shown.startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure))._repr_png_() == shown


def test_settings_of_the_caller_stay():
    before = dict(matplotlib.rcParams)
    plots.reliability_diagram(table())
    assert dict(matplotlib.rcParams) == before


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
