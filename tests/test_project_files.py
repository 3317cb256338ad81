"""Files for contributors agree with the package: versions, commands, addresses."""

import re
import runpy
import subprocess
from pathlib import Path

import numpy as np
import setuptools
import yaml

import calib_jax
from experiments.notebooks.setup_cells import REPOSITORY

ROOT = Path(__file__).resolve().parent.parent
OLDEST = dict(
    line.split("==")
    for line in subprocess.check_output([ROOT / ".ci/oldest"], text=True).splitlines()
    if "==" in line
)


def numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)]


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == calib_jax.__version__
    assert citation.get("repository-code", "") == REPOSITORY


def test_the_oldest_versions_are_those_of_the_package(monkeypatch):
    told = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: told.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    assert {f"{name}>={oldest}" for name, oldest in OLDEST.items()} == set(told["install_requires"])


def test_the_proven_versions_are_supported():
    text = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8")
    proven = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))
    proven = {name.lower().replace("_", "-"): version for name, version in proven.items()}
    for name, oldest in OLDEST.items():
        assert numbers(proven[name.lower().replace("_", "-")]) >= numbers(oldest), name
    for tool in ("pytest", "ruff", "mypy", "basedpyright", "sphinx", "myst-nb"):
        assert tool in proven


def test_no_link_is_committed():
    """A link leads to a folder of one machine; `.venv/` in .gitignore does not ignore it."""
    command = ["git", "ls-files", "--stage"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []


def test_results_name_no_folder_of_a_machine():
    """Results are read by others: commands and settings have the last names of paths alone."""
    results = ROOT / "experiments/results"
    texts = {path: path.read_text(encoding="utf-8") for path in results.rglob("*.json")}
    for path in results.rglob("*.npz"):
        with np.load(path) as arrays:
            if "about" in arrays:
                texts[path] = bytes(arrays["about"]).decode()
    assert len(texts) > 20
    commands = {
        path: re.findall(r'"command": ("(?:[^"\\]|\\.)*")', text) for path, text in texts.items()
    }
    folder = re.compile(r"[= '\"]/(?!tmp/)")
    assert not [path for path, found in commands.items() if folder.search(str(found))]
    assert not [path for path, text in texts.items() if re.search(r'": "/', text)]
