"""Figures are files that depend on nothing but the picture, and leave nothing behind."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from calib_jax import plots

from .tables import table

ROOT = Path(__file__).resolve().parents[2]
ENDINGS = ("png", "svg", "pdf")

ALONE = """
import hashlib, sys
from tests.plots.tables import table
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


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("a.bmp", ValueError, r"'a\.bmp' has the ending '\.bmp': end it in \.png, \.svg or \.pdf"),
        ("a", ValueError, "has the ending ''"),
        ("missing/a.png", FileNotFoundError, "there is no folder .*missing: make it first"),
        ("folder.png", IsADirectoryError, r"cannot write .*folder\.png \(Is a directory\)"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(tmp_path, name, error, sentence):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(error, match=sentence) as caught:
        plots.save(plots.reliability_diagram(table()), tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_wrong_size_is_refused(tmp_path):
    with pytest.raises(ValueError, match="width must be greater than 0, got -1"):
        plots.reliability_diagram(table(), width=-1)
    with pytest.raises(ValueError, match="dpi must be at least 1"):
        plots.save(plots.reliability_diagram(table()), tmp_path / "a.png", dpi=0)


def test_a_wrong_name_of_a_picture_is_answered_with_the_right_one():
    with pytest.raises(AttributeError, match="did you mean 'reliability_diagram'"):
        _ = plots.reliability_digram
