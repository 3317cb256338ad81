"""The notebooks: valid files with outputs, whose code uses public names and runs."""

import ast
import builtins
import copy
import importlib
import re

import pytest

import calib_jax
from experiments.notebooks import execute, setup_cells

NAMES = execute.names()
every_notebook = pytest.mark.parametrize("name", NAMES)


def code_cells(name):
    return [cell for cell in execute.read(name)["cells"] if cell["cell_type"] == "code"]


def code_of(name):
    return "\n".join(setup_cells.text_of(cell) for cell in code_cells(name))


def test_there_are_six_and_the_readme_lists_them():
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05", "06"]
    readme = (execute.FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[(\w+)\]\(\1\.ipynb\)", readme, re.MULTILINE) == NAMES


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
    """Check that a name exists and that its subpackage lists it."""
    _, subpackage, *names = path.split(".")
    if subpackage not in calib_jax.__all__:
        return False
    package = getattr(calib_jax, subpackage)
    if names[:1] == ["scikit_learn"]:  # a public file, which needs scikit-learn
        return names[1] in source_of_all("calibrators/scikit_learn.py")
    return not names or (names[0] in package.__all__ and hasattr(package, names[0]))


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
