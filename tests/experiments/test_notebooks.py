"""The notebooks: valid files with outputs, whose code uses public names and runs."""

import ast
import builtins
import copy
import importlib
import json
import re
import sys

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
def test_it_is_a_valid_file_of_version_4(name):
    notebook = execute.read(name)
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    identities = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identities)) == len(identities)
    for cell in notebook["cells"]:
        common = {"cell_type", "id", "metadata", "source"}
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell.keys() == common | code
        assert cell["cell_type"] in ("code", "markdown")
        assert all(isinstance(line, str) for line in cell["source"])


@every_notebook
def test_its_outputs_are_light_and_the_same_everywhere(name):
    outputs = [output for cell in code_cells(name) for output in cell["outputs"]]
    assert len(outputs) >= 3
    kinds = {output["output_type"] for output in outputs}
    assert kinds <= {"stream", "display_data", "execute_result"}  # no error
    assert {output["name"] for output in outputs if "name" in output} <= {"stdout"}  # no warning
    whole = json.dumps(execute.read(name))
    assert len(whole) < 400_000
    text = re.sub(r'"image/png": "[^"]*"', "", whole)
    for path in ("/home", "/tmp", "/work", "/root", "/Users", "C:\\\\"):
        assert path not in re.sub(r"https?://\S+", "", text)
    assert "0x7" not in text  # no address in memory
    # Executing writes the file anew; only a change of its cells or values may show.
    notebook = execute.read(name)
    assert execute.cleaned(copy.deepcopy(notebook)) == notebook


@every_notebook
def test_its_first_cells_are_those_of_the_address(name):
    notebook = execute.read(name)
    tags = [setup_cells.tag_of(cell) for cell in code_cells(name)[:2]]
    assert tags == [setup_cells.INSTALL, setup_cells.PARAMETERS]
    refreshed = copy.deepcopy(notebook)
    setup_cells.refresh(refreshed, f"{name}.ipynb")
    assert refreshed == notebook


def test_an_address_comes_into_the_cells_and_goes_again():
    notebook = execute.read(NAMES[0])
    named = copy.deepcopy(notebook)
    address = "https://github.com/OWNER/NAME"
    setup_cells.refresh(named, "a.ipynb", address)
    title, install = named["cells"][:2]
    assert f"{address.partition('.com/')[2]}/blob/main" in title["source"][0]
    assert f'repository = "{address}"' in setup_cells.text_of(install)
    ast.parse(setup_cells.text_of(install))
    setup_cells.refresh(named, "a.ipynb", "")
    assert named == notebook


def test_the_repository_is_empty_or_an_address():
    """The checkout knows no address yet; nobody invents one."""
    assert re.fullmatch(r"(https://[\w./-]+[\w])?", setup_cells.REPOSITORY)


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


@pytest.mark.parametrize("path", ["calib_jax.metrics.eces", "calib_jax.core.rows", "calib_jax.x"])
def test_a_name_that_is_not_public_is_seen(path):
    assert not is_public(path)


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


@pytest.mark.slow
@every_notebook
def test_a_kernel_executes_it(name):
    pytest.importorskip("nbclient")
    notebook = execute.executed(execute.read(name), tiny=True)
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert outputs
    assert all(output["output_type"] != "error" for output in outputs)


def test_without_nbclient_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "nbclient", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'calib_jax\[docs\]'"):
        execute.executed(execute.read(NAMES[0]))
