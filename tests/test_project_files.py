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


def test_the_workflow_runs_what_a_contributor_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    checks = workflow["jobs"]["run"]
    assert ".ci/run" in [step.get("run") for step in checks["steps"]]
    choices = {(m["python"], m["constraints"]) for m in checks["strategy"]["matrix"]["include"]}
    assert choices == {
        *(("3.11", "proven"), ("3.11", "oldest"), ("3.x", "none")),
        *(("3.12", "jax-0.11"), ("3.13", "jax-0.11")),
    }
    flags = {m.get("flags") for m in checks["strategy"]["matrix"]["include"]}
    assert flags == {None, "--xla_backend_optimization_level=3"}  # once as users compile
    assert set(workflow["jobs"]["slow"]["strategy"]["matrix"]["tests"]) == {
        "test_*.py",
        *(path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")),
    }
    assert f'python_requires=">={min(p for p, _ in choices)}"' in (ROOT / "setup.py").read_text()


def test_issues_ask_for_the_environment():
    for name in ("bug", "number"):
        form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
        (field,) = [field for field in form["body"] if field.get("id") == "environment"]
        assert "python -m experiments.running.environment" in field["attributes"]["description"]
        assert field["validations"]["required"]


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


def test_hooks_run_the_tools_of_the_checkout():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repository,) = hooks["repos"]
    assert repository["repo"] == "local"
    assert all(h["entry"].startswith(".venv/bin/python -m ") for h in repository["hooks"])


def test_no_link_is_committed():
    """A link leads to a folder of one machine; `.venv/` in .gitignore does not ignore it."""
    command = ["git", "ls-files", "--stage"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []


def test_every_result_is_described():
    folder = ROOT / "experiments" / "results"
    page = (folder / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in folder.iterdir()} - {"README.md"}
    assert not {name for name in names if f"`{name}" not in page}


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
