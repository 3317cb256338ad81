"""Folders of data sets for the tests of those that are read from files."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of data sets; none that this machine may have is found."""
    for variable in ("CALIB_JAX_DATA_DIR", "TFDS_DATA_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "sets"
    path.mkdir()
    return path
