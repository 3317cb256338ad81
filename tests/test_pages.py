"""The pages, the notebooks and the first table: code and commands run as printed.

The examples of docstrings and READMEs run in `test_doctests.py`.
"""

import ast
import builtins
import copy
import doctest
import importlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.special

import calib_jax
from calib_jax.report.command import score_files
from experiments.documentation import first_table, members
from experiments.notebooks import execute, setup_cells
from experiments.reports import summary
from tests.experiments.processes import environment
from tests.test_doctests import Checker, code_blocks

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "experiments" / "documentation"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.md"))}
CHEAP = {"conventions"}  # the others compile programs of shapes of their own
BY_HAND = {"public_network"}  # reads CIFAR-10 and the weights of networks, which are not here
SUBPACKAGES = ["calib_jax"] + [
    value.__name__
    for name in calib_jax.__all__
    if inspect.ismodule(value := getattr(calib_jax, name))
]
COMMAND = """#!/bin/sh
exec "{python}" -c 'import sys; from calib_jax.report.command import main; sys.exit(main())' "$@"
"""


def blocks(text: str, language: str) -> list[str]:
    """List the blocks of a Markdown text in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=() if name in CHEAP else pytest.mark.slow)
        for name, text in PAGES.items()
        if name not in BY_HAND and (blocks(text, "python") or blocks(text, "pycon"))
    ],
)
def test_the_python_of_a_page_runs(page):
    names = {"__name__": "page"}
    for block in code_blocks(PAGES[page]):
        exec(compile(block, page, "exec"), names)
    consoles = "\n".join(blocks(PAGES[page], "pycon"))
    examples = doctest.DocTestParser().get_doctest(consoles, names, page, page, 0)
    report = io.StringIO()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(Checker(), optionflags=flags)
    assert not runner.run(examples, out=report.write).failed, report.getvalue()


@pytest.mark.slow
def test_the_commands_of_the_page_on_own_data_run(tmp_path):
    """In an empty folder with the configs of the checkout, and the commands of an installation."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("calib-score", COMMAND), ("python", '#!/bin/sh\nexec "{python}" "$@"\n')):
        (programs / name).write_text(text.format(python=sys.executable))
        (programs / name).chmod(0o755)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    variables = environment() | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        # The commands share their compiled programs.
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    outputs = [
        subprocess.check_output(
            ["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, env=variables, text=True
        )
        for block in blocks(PAGES["own"], "sh")
    ]
    _, _, trained, compared, scored, _, texts = outputs
    assert trained.count("epoch 3/3") == 2
    assert "small_logits" in compared
    assert "9 examples in 3 classes" in scored
    assert "| accuracy | 0.7500 " in scored
    assert "44 to train, 8 to validate, 8 to test, in 2 classes" in texts


def test_the_first_output_of_the_readme_is_that_of_today(monkeypatch):
    """Each line of the page begins a line of the output, in order; numbers to the digits shown."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command, shown = re.search(
        r"^```\n\$ (calib-score .*?)\n(.*?)\.\.\.\n```$", readme, re.M | re.S
    ).groups()
    file, *options = command.split()[1:]
    named = dict(option.removeprefix("--").split("=") for option in options)
    monkeypatch.chdir(ROOT / "experiments/results/cifar10")
    scored = score_files(
        predictions=[file],
        calibrate=named["calibrate"],
        fit_on=[named["fit_on"]],
        metrics=named["metrics"].split(","),
    )
    number = re.compile(r"[-+]?\d*\.\d+")
    actual = iter(line.split() for line in str(scored).splitlines())
    for wanted in filter(None, (line.split() for line in shown.splitlines())):
        masked = [number.sub("#", word) for word in wanted]
        line = next(
            words[: len(wanted)]
            for words in actual
            if [number.sub("#", word) for word in words[: len(wanted)]] == masked
        )
        tolerance = 0.11 if "points" in wanted else 0.0011  # of another order of sums
        found = [[float(v) for v in number.findall(" ".join(x))] for x in (line, wanted)]
        np.testing.assert_allclose(*found, atol=tolerance)


def test_relative_links_lead_to_files():
    """The build of the site checks anchors too, but takes a link it cannot parse for text."""
    folders = [ROOT / name for name in ("calib_jax", "configs", "experiments", "tests")]
    for page in [*ROOT.glob("*.md"), *(page for top in folders for page in top.rglob("*.md"))]:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\((?![a-z]+:|#)([^)#]+)[^)]*\)", text):
            assert (page.parent / link).exists(), (page, link)


def test_the_reference_has_every_public_name():
    """Each subpackage has a page, and the page an entry for each name of its `__all__`."""
    for name in SUBPACKAGES:
        module = importlib.import_module(name)
        source = SOURCES / "reference" / f"{name.rpartition('.')[2]}.md"
        assert f"\n% members of {name}\n" in source.read_text(encoding="utf-8"), name
        text = members.page(module)
        for member in members.members_of(module):
            assert f"<{name}.{member.name}>`" in text
            described = rf"^`+{{py:\w+}} ({re.escape(name)}\.)?{re.escape(member.name)}\b"
            assert re.search(described, text, re.MULTILINE), member


NOTEBOOKS = execute.names()
every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def code_cells(name):
    return [cell for cell in execute.read(name)["cells"] if cell["cell_type"] == "code"]


def code_of(name):
    return "\n".join(setup_cells.text_of(cell) for cell in code_cells(name))


def test_there_are_six_and_the_readme_lists_them():
    assert [name[:2] for name in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06"]
    readme = (execute.FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[(\w+)\]\(\1\.ipynb\)", readme, re.MULTILINE) == NOTEBOOKS


@every_notebook
def test_its_first_cells_are_those_of_the_address(name):
    notebook = execute.read(name)
    tags = [setup_cells.tag_of(cell) for cell in code_cells(name)[:2]]
    assert tags == [setup_cells.INSTALL, setup_cells.PARAMETERS]
    refreshed = copy.deepcopy(notebook)
    setup_cells.refresh(refreshed, f"{name}.ipynb")
    assert refreshed == notebook


def public_uses(source):
    """Yield the names of calib_jax that a source imports or looks up, as dotted paths."""
    tree = ast.parse(source)
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calib_jax"):
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    yield from bound.values()
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(value, ast.Name) and value.id in bound:
            yield f"{bound[value.id]}.{node.attr}"


def is_public(path):
    """Check that a name exists and that its subpackage exports it, be it listed or not."""
    _, subpackage, *names = path.split(".")
    if subpackage not in calib_jax.__all__:
        return False
    package = getattr(calib_jax, subpackage)
    if names[:1] == ["scikit_learn"]:  # a public file, which needs scikit-learn
        return names[1] in source_of_all("calibrators/scikit_learn.py")
    exported = {*package.__all__, *getattr(package, "_UNLISTED", ())}
    return not names or (names[0] in exported and hasattr(package, names[0]))


def source_of_all(path):
    source = (execute.ROOT / "calib_jax" / path).read_text(encoding="utf-8")
    return re.search(r"^__all__ = (.*)$", source, re.MULTILINE)[1]


@every_notebook
def test_its_code_parses_and_uses_public_names_alone(name):
    uses = list(public_uses(code_of(name)))
    assert len(uses) > 5
    assert [path for path in uses if not is_public(path)] == []
    assert "experiments" not in code_of(name)  # the wheel does not contain it


@pytest.mark.slow
@every_notebook
def test_it_runs_from_top_to_bottom(name, monkeypatch):
    """Run the cells in this process, where every warning is an error."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    importlib.import_module("matplotlib").use("Agg")
    namespace = {"__builtins__": builtins, "__name__": "__main__"}
    for number, cell in enumerate(code_cells(name)):
        source = setup_cells.text_of(cell).replace("TINY = False", "TINY = True")
        exec(compile(source, f"{name}, code cell {number}", "exec"), namespace)
    assert namespace["TINY"] is True


COLUMNS = ("value", "sd", "low", "high", "difference", "difference_low", "difference_high")


@pytest.fixture(scope="module")
def saved():
    """The committed numbers."""
    return json.loads((ROOT / first_table.NUMBERS).read_text())


@pytest.fixture(scope="module")
def published():
    """The committed predictions, and their provenance."""
    return first_table.runs(ROOT / first_table.PREDICTIONS)


def by_column(saved):
    return {(cell["loss"], cell["phase"], cell["metric"]): cell for cell in saved["cells"]}


def test_the_predictions_are_those_of_the_numbers(saved, published):
    """Error and NLL by hand."""
    runs, made = published
    assert made == saved["provenance"]
    assert [f"{one.loss} seed {one.seed}" for one in runs] == list(saved["checkpoints"])
    cells = by_column(saved)
    for loss in {one.loss for one in runs}:
        tests = [(one.test[0].astype(float), one.test[1]) for one in runs if one.loss == loss]
        errors = [np.mean(logits.argmax(axis=-1) != labels) for logits, labels in tests]
        nlls = [
            np.mean(-scipy.special.log_softmax(logits, axis=-1)[np.arange(len(labels)), labels])
            for logits, labels in tests
        ]
        for name, values in (("error", errors), ("nll", nlls)):
            cell = cells[loss, summary.BEFORE, name]
            np.testing.assert_allclose(cell["value"], np.mean(values), rtol=1e-5)
            np.testing.assert_allclose(cell["sd"], np.std(values, ddof=1), rtol=1e-4)


@pytest.mark.slow
def test_the_numbers_are_those_of_today_s_statistics(saved, published):
    """Every value, interval, difference and p-value, as the sweep computed them."""
    options = {"baseline": saved["baseline"], "num_bins": saved["num_bins"]}
    again = summary.summarize(published[0], **options)
    known = by_column(saved)
    assert len(again.cells) == len(known)
    for cell in again.cells:
        expected = known[cell.loss, cell.phase, cell.metric]
        for name in (*COLUMNS, "p", "p_holm"):
            # NaN, an end that does not exist, is null in a file.
            actual, before = (None if x != x else x for x in (getattr(cell, name), expected[name]))
            what = f"{cell.loss} {cell.phase} {cell.metric} {name}: {before}, now {actual}"
            assert (actual is None) == (before is None), what
            if before is not None:  # a hundredth of the last digit that a table shows
                assert np.isclose(actual, before, rtol=1e-4, atol=1e-5), what
    for loss, temperatures in saved["temperatures"].items():
        np.testing.assert_allclose(again.temperatures[summary.AFTER][loss], temperatures, rtol=1e-4)


def test_the_committed_rows_are_those_of_the_numbers(saved):
    """`python -m experiments.documentation.first_table` writes them."""
    text = (ROOT / first_table.PAGE).read_text(encoding="utf-8")
    assert first_table.with_rows(text, saved) == text
