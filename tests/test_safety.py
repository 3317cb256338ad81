"""No code from data, no listener, no leftovers, and no harm from names."""

import ast
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.dom.minidom

import numpy as np
import pytest

from calib_jax import metrics, plots
from calib_jax.core.files import writing
from experiments.reports import summary, summary_text
from tests.experiments.processes import environment
from tests.selection import every_case

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("calib_jax", "configs", "experiments")

# What runs code that data holds, or reads objects by running code.
MODULES = {"cloudpickle", "code", "dill", "joblib", "marshal", "pickle", "shelve", "yaml"}
BUILTINS = {"__import__", "eval", "exec", "compile", "execfile"}
METHODS = {
    ("os", "system"),
    ("os", "popen"),
    ("runpy", "run_path"),
    ("torch", "load"),
    ("pandas", "read_pickle"),
    ("tempfile", "mktemp"),
}


def found(source):
    """Yield what a file does that no file may do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
            yield from (f"line {node.lineno}: import {name}" for name in names & MODULES)
        elif isinstance(node, ast.ImportFrom):
            name = (node.module or "").partition(".")[0]
            if name in MODULES and not node.level:
                yield f"line {node.lineno}: from {name}"
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                if keyword.arg in ("allow_pickle", "shell") and value is not False:
                    yield f"line {node.lineno}: {keyword.arg}"
            if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
                yield f"line {node.lineno}: {node.func.id}()"
        if isinstance(node, ast.Attribute):
            name = getattr(node.value, "id", ""), node.attr
            yield from (f"line {node.lineno}: {'.'.join(name)}" for _ in {name} & METHODS)


def test_no_file_runs_code_from_data():
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 300
    harmful = {
        f"{path.relative_to(ROOT)}, {each}"
        for path in paths
        for each in found(path.read_text(encoding="utf-8"))
    }
    assert harmful == set()


@every_case
@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n  from joblib import load",
        "import yaml.constructor",
        "eval(text)",
        "x = [exec(text)]",
        "np.load(path, allow_pickle=True)",
        "read = torch.load",
        "np.lib.format.read_array(file, allow_pickle=True)",
        "np.lib.format.read_array(file, allow_pickle=allowed)",
        "subprocess.run(text, shell=True)",
        "path = tempfile.mktemp()",
    ],
)
def test_code_from_data_is_seen(source):
    assert len(list(found(source))) == 1


@every_case
@pytest.mark.parametrize(
    "source",
    ["network.eval()", "re.compile(text)", "np.savez(path, allow_pickle=False)", "np.load(path)"],
)
def test_harmless_calls_are_allowed(source):
    assert list(found(source)) == []


# --------------------------------------------------------------------------------------------
# What a process leaves behind.

# The sockets of this process that listen, by Linux: state 0A in its tables of TCP.
LISTENING = """
import os, sys
sys.argv = sys.argv[1:]
def listening():
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    own = {os.readlink(link) for link in links if os.path.islink(link)}
    rows = [line.split() for table in ("tcp", "tcp6") if os.path.exists(f"/proc/self/net/{table}")
            for line in open(f"/proc/self/net/{table}")]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
def report():
    print("LISTENING", len(listening()), flush=True)
"""
TRAIN = """
from experiments.running import cli
import experiments.train as binary
run = binary.main
binary.main = lambda: (run(), report())[0]
cli.run(binary.main)
"""
SCORE = """
from calib_jax.report.command import main
main(sys.argv[1:])
report()
"""
SERVE = """
import socket
with socket.create_server(("127.0.0.1", 0)):
    report()
"""


def listeners(program, folder, *arguments):
    """Run a program; return how many sockets listen at its end, and what TMPDIR then holds."""
    temporary = folder / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-Wignore", "-c", LISTENING + program, "program", *map(str, arguments)],
        cwd=ROOT,
        env=environment() | {"TMPDIR": str(temporary), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    numbers = re.findall(r"^LISTENING (\d+)$", done.stdout, re.MULTILINE)
    assert len(numbers) == 1, done.stdout + done.stderr
    return int(numbers[0]), os.listdir(temporary)


def hidden(folder):
    """List the unfinished files of a folder."""
    return [path.name for path in folder.rglob(".*.partial")]


@pytest.mark.skipif(not pathlib.Path("/proc/self/net").exists(), reason="Linux lists sockets there")
class TestAProcess:
    def test_a_listener_is_seen(self, tmp_path):
        assert listeners(SERVE, tmp_path) == (1, [])

    @pytest.mark.slow
    def test_training_listens_nowhere_and_leaves_nothing(self, tmp_path):
        options = ["--config=configs/gaussians.py", "--config.num_epochs=1"]
        run = tmp_path / "run"
        assert listeners(TRAIN, tmp_path, *options, f"--workdir={run}") == (0, [])
        assert json.loads((run / "config.json").read_text())["num_epochs"] == 1
        assert hidden(run) == []

    def test_scoring_listens_nowhere_and_leaves_nothing(self, tmp_path):
        random = np.random.default_rng(0)
        labels = random.integers(0, 2, 60)
        np.savez(tmp_path / "p.npz", logits=random.normal(size=(60, 2)), labels=labels)
        options = ["--metrics=accuracy", "--resamples=20", "--cache=", f"--out={tmp_path / 'out'}"]
        assert listeners(SCORE, tmp_path, tmp_path / "p.npz", *options) == (0, [])
        assert (tmp_path / "out" / "report.html").exists()
        assert hidden(tmp_path) == []


def test_names_of_unfinished_files_are_drawn_and_follow_no_link(tmp_path, monkeypatch):
    """Somebody who knew the name could put a link there, through which the file is written."""
    names = set()
    for _ in range(5):
        with writing.replacing(tmp_path / "a.json") as path:
            names.add(path.name)
            assert os.stat(path).st_nlink == 1
    assert len(names) == 5
    assert all(re.fullmatch(r"\.a\.json\.[0-9a-f]{16}\.partial", name) for name in names)
    monkeypatch.setattr(os, "urandom", bytes)
    monkeypatch.setattr(writing, "remove_leftovers", lambda *_: None)  # the link came afterwards
    victim = tmp_path / "victim"
    victim.write_text("whole")
    (tmp_path / f".a.json.{16 * '0'}.partial").symlink_to(victim)
    with pytest.raises(FileExistsError), writing.replacing(tmp_path / "a.json") as path:
        path.write_text("written")
    assert victim.read_text() == "whole"


def test_the_page_on_safety_has_every_dependency_with_its_bound():
    page = (ROOT / "experiments" / "documentation" / "safety.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\S+) \| (\w+) \| ([<>=.,\d]+) \|", page, re.MULTILINE)
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    wanted = re.findall(r'"([A-Za-z][\w.-]*)((?:>=|<)[<>=.,\d]+)"', setup)
    assert len(wanted) > 30
    assert sorted((name, bound) for name, _, bound in listed) == sorted(set(wanted))


# --------------------------------------------------------------------------------------------
# Names. Reports of one model: report/test_names.py and report/test_html.py.

NAMES = {
    "a terminal's escapes": "\x1b[2J\x1b]0;owned\x07\u202egnp\x9b31m",
    "a line break": "cat\n\n# Owned\n",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "the end of a comment": "--><script>alert(1)</script><!--]]>",
    "cells": "a|b](javascript:alert(1)) *c* `d`",
    "a formula that is none": r"$\frac$ and $1",
    "bytes that are no text": "caf\udce9",
}


@functools.cache
def bins():
    random = np.random.default_rng(0)
    return metrics.reliability(
        random.normal(size=(60, 3)).astype(np.float32), random.integers(0, 3, 60)
    )


def elements(text):
    """Parse XML; return the names of its elements and of their attributes."""
    nodes = xml.dom.minidom.parseString(text.encode("utf-8")).getElementsByTagName("*")
    return {key for node in nodes for key in (node.tagName, *dict(node.attributes.items()))}


@pytest.mark.slow
def test_figures_are_valid_svg_without_scripts(tmp_path):
    names = NAMES.values()
    figures = [
        plots.reliability_grid(dict.fromkeys(names, bins()), title=NAMES["HTML"]),
        plots.intervals({name: {name: (0.1, 0.05, 0.2)} for name in names}, title=NAMES["HTML"]),
        plots.training_curves({n: {n: np.arange(4.0)} for n in names}, np.arange(4.0)),
    ]
    for figure in figures:
        plots.save(figure, tmp_path / "a.svg")
        inline = plots.inline_svg(figure, "a", description="".join(names))
        for text in ((tmp_path / "a.svg").read_text(encoding="utf-8"), inline):
            assert not elements(text) & {"script", "img", "onerror", "onload", "foreignObject"}
            assert all(c.isprintable() or c == "\n" for c in text)
        assert r"\x1b[2J" in inline  # shown, not dropped


@pytest.mark.slow
def test_a_summary_of_runs_escapes_their_names(tmp_path):
    random = np.random.default_rng(0)
    sets = [(random.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 3) for _ in range(2)]
    rows = [{"epoch": 1.0, "step": 1, "validation_error": 0.5, "validation_nll": 1.0}]
    runs = [summary.Run(name, 0, *sets, rows) for name in ("a", *NAMES.values())]
    about = {"what": f"Runs of {'; '.join(NAMES.values())}.", "title": NAMES["HTML"]}
    made = summary.summarize(runs, baseline="a", num_bins=5, num_resamples=20, about=about)
    assert sorted(summary_text.save(made, tmp_path)) == sorted(os.listdir(tmp_path))
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (summary_text.text(made), page, html):
        assert all(c.isprintable() or c in "\n\u200c\u200d" for c in text)
        assert text == html or "# Owned" not in map(str.strip, text.splitlines())
    for harm in ("<script>alert", "<img"):
        assert harm not in page
        assert harm not in html
    assert "](javascript" not in page
    tables = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    assert len(tables) >= 2
    for table in tables:  # every row has the cells of its head
        assert len({line.replace(r"\|", "").count("|") for line in table}) == 1
