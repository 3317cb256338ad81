"""The structure: which subpackage may import which, the top level, and the content of the wheel."""

import ast
import fnmatch
import inspect
import itertools
import pkgutil
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import setuptools

import calib_jax

ROOT = Path(__file__).resolve().parent.parent
OURS = {"calib_jax", "configs", "experiments", "tests"}
SUBPACKAGES = {
    *("core", "losses", "metrics", "inference", "calibrators"),
    *("models", "data", "train", "plots", "report"),
}
ALLOWED = {subpackage: {"core", subpackage} for subpackage in SUBPACKAGES}
ALLOWED["inference"] |= {"metrics"}
ALLOWED["report"] |= {"metrics", "inference", "calibrators", "plots"}

# A library takes its options as arguments; flags, configs and TensorFlow belong to the binaries.
FORBIDDEN = {"absl", "ml_collections", "tensorflow"}
# Slow to import, and needed by few functions.
LAZY = {"matplotlib", "orbax", "tensorflow_datasets"}
# The report and the binaries import only public names of these subpackages ...
PUBLIC_ONLY = SUBPACKAGES - {"core", "report"}
# ... except the formats of the files of runs and data sets, which the binaries share,
SHARED_FORMATS = ("calib_jax.train.checkpoint", "calib_jax.train.log", "calib_jax.data.formats")
# and the folder whose subject is the inside: benchmarks of parts.
OF_INTERNALS = ("experiments/benchmarks",)
# An error of `metrics` names the functions of `inference`, where users look for them.
ALIASES = Path("calib_jax/metrics/__init__.py"), "calib_jax.inference"
THE_PARALLEL_FILE = Path("calib_jax/train/pmap.py")


class Import(NamedTuple):
    """One imported name, absolute, and whether it is imported as soon as the file is."""

    name: str
    line: int
    at_once: bool


def imports(source: str, path: Path) -> list[Import]:
    """List what a file imports: anywhere in it, relative names resolved, attributes included."""
    package = path.parent.parts
    listed = []

    def note(node: ast.AST, names: list[str], at_once: bool) -> None:
        listed.extend(Import(name, node.lineno, at_once) for name in names)

    def visit(node: ast.AST, at_once: bool) -> None:
        if isinstance(node, ast.Import):
            note(node, [alias.name for alias in node.names], at_once)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = (*base, *(node.module or "").split(".")) if node.module else base
            note(node, [".".join((*base, alias.name)) for alias in node.names], at_once)
        elif isinstance(node, ast.Call) and said(node.func) in {"import_module", "__import__"}:
            constants = [a.value for a in node.args if isinstance(a, ast.Constant)]
            note(node, [c for c in constants[:1] if isinstance(c, str)], at_once)
        elif isinstance(node, ast.Attribute) and said(node.value) == "calib_jax":
            note(node, [f"calib_jax.{node.attr}"], at_once)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types_only = isinstance(node, ast.If) and said(node.test) == "TYPE_CHECKING"
        for child in ast.iter_child_nodes(node):
            visit(child, at_once and not function and not types_only)

    visit(ast.parse(source), True)
    return [i for i in listed if not (path == ALIASES[0] and i.name.startswith(ALIASES[1]))]


def is_public(name: str) -> bool:
    """Check whether an imported name of calib_jax is public, or may be imported all the same."""
    subpackage, *names = name.split(".")[1:] or [""]
    if subpackage not in PUBLIC_ONLY or not names or name.startswith(SHARED_FORMATS):
        return True
    public = names[0] in getattr(calib_jax, subpackage).__all__
    # `calibrators.temperature` is a module; a name inside a file of a subpackage is not public.
    return public and (subpackage == "calibrators" or len(names) == 1)


def said(node: ast.AST) -> str | None:
    """Return the last word of a name: `pmap` in both `pmap` and `jax.pmap`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return None


def complaints(source: str, path: Path) -> Iterator[str]:
    """Yield every forbidden arrow in one file of ours, `path` being relative to the checkout."""
    top = path.parts[0]
    subpackage = path.parts[1] if top == "calib_jax" and len(path.parts) > 2 else None
    for name, line, at_once in imports(source, path):
        where = f"{path}:{line}"
        first, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if top == "calib_jax":
            if first in FORBIDDEN:
                yield f"{where} imports {name}: no file of calib_jax may."
            if first in LAZY and at_once:
                yield f"{where} imports {name}: only inside a function."
            if first in OURS - {"calib_jax"}:
                yield f"{where} imports {name}: calib_jax knows nothing of {first}."
            if (
                subpackage
                and first == "calib_jax"
                and target not in ALLOWED.get(subpackage, {subpackage})
            ):
                yield f"{where} imports {name}: {subpackage} may not."
        users = top == "experiments" or path.parts[:2] == ("calib_jax", "report")
        inside = any(path.is_relative_to(folder) for folder in OF_INTERNALS)
        if users and not inside and first == "calib_jax" and not is_public(name):
            yield f"{where} imports {name}: import a public name of {target}."
        if top == "configs" and first in OURS - {"configs"}:
            yield f"{where} imports {name}: configs may not."
    if path != THE_PARALLEL_FILE and top in OURS - {"tests"}:
        for node in ast.walk(ast.parse(source)):
            words = (
                {a.name for a in node.names} if isinstance(node, ast.ImportFrom) else {said(node)}
            )
            if "pmap" in words:
                yield f"{path}:{node.lineno} says pmap: only {THE_PARALLEL_FILE} may."


FILES = [
    path.relative_to(ROOT)
    for top in ("calib_jax", "configs", "experiments")
    for path in sorted((ROOT / top).rglob("*.py"))
]


def circles(sources: dict[Path, str]) -> list[list[str]]:
    """List the groups of files that import each other, directly or through others.

    Imports inside functions and for type checkers count, because a circle is a matter of design.
    """
    modules = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in sources
    }
    needs: dict[str, set[str]] = {}
    for module, path in modules.items():
        needs[module] = set()
        for name, _, _ in imports(sources[path], path):
            while name and name not in modules:  # from the imported name to its file
                name = name.rpartition(".")[0]
            needs[module] |= {name} - {"", module}

    def reached(start: str) -> set[str]:
        """List the files that a file imports, directly or through others."""
        files: set[str] = set()
        waiting = [start]
        while waiting:
            new = needs[waiting.pop()] - files
            waiting += new
            files |= new
        return files

    all_reached = {module: reached(module) for module in modules}
    groups = {
        frozenset(other for other in all_reached[module] if module in all_reached[other])
        for module in modules
        if module in all_reached[module]
    }
    return sorted(sorted(group) for group in groups)


def test_no_forbidden_arrow():
    found = [complaints((ROOT / path).read_text(encoding="utf-8"), path) for path in FILES]
    assert list(itertools.chain.from_iterable(found)) == []


def test_no_files_import_each_other():
    assert circles({path: (ROOT / path).read_text(encoding="utf-8") for path in FILES}) == []


@pytest.mark.parametrize(
    "back", ["from calib_jax.losses import focal", "from .focal import weight"]
)
def test_a_circle_is_seen(back):
    losses = Path("calib_jax/losses")
    sources = {
        losses / "focal.py": "from calib_jax.losses.weighting import weigh",
        losses / "weighting.py": "import jax",
    }
    assert circles(sources) == []
    sources[losses / "weighting.py"] = back
    assert circles(sources) == [["calib_jax.losses.focal", "calib_jax.losses.weighting"]]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("calib_jax/losses/focal.py", "from calib_jax import metrics"),
        ("calib_jax/losses/focal.py", "from ..metrics import ece"),
        ("calib_jax/losses/focal.py", "def f():\n  from calib_jax import metrics"),
        ("calib_jax/losses/focal.py", "if TYPE_CHECKING:\n  from calib_jax import train"),
        ("calib_jax/core/rows.py", "from calib_jax.losses import focal"),
        ("calib_jax/metrics/ece.py", "from calib_jax.inference import bootstrap"),
        ("calib_jax/inference/pairs/scores.py", "from calib_jax.losses import focal"),
        ("calib_jax/report/score.py", "from calib_jax import losses"),
        ("calib_jax/plots/bars.py", "from calib_jax import report"),
        ("calib_jax/train/loop.py", "import absl.logging"),
        ("calib_jax/train/loop.py", "def f():\n  from ml_collections import ConfigDict"),
        ("calib_jax/data/formats/tfds.py", "def f():\n  import tensorflow as tf"),
        ("calib_jax/plots/bars.py", "try:\n  import matplotlib.pyplot as plt\nexcept E:\n  pass"),
        ("calib_jax/__init__.py", "from experiments import train"),
        ("calib_jax/train/loop.py", "from configs.losses import load"),
        ("configs/digits.py", "from calib_jax import losses"),
        ("calib_jax/train/step.py", "jax.pmap(f)"),
        ("experiments/train.py", "jax.pmap(f)"),
        ("calib_jax/report/score.py", "from calib_jax.inference.residuals import Binned"),
        ("experiments/evaluate.py", "def f():\n  from calib_jax.models.bert import Bert"),
        ("experiments/reports/text.py", "from calib_jax.train.pmap import Processes"),
    ],
)
def test_a_forbidden_arrow_is_seen(path, source):
    assert len(list(complaints(source, Path(path)))) == 1


def test_calib_jax_has_rooms_only():
    folders = {path.parent for path in (ROOT / "calib_jax").rglob("*.py")} - {ROOT / "calib_jax"}
    assert {path.relative_to(ROOT / "calib_jax").parts[0] for path in folders} <= SUBPACKAGES
    # score_command.py starts a command before a room is imported.
    names = {path.name for path in (ROOT / "calib_jax").glob("*.py")}
    assert names == {"__init__.py", "score_command.py"}


def test_top_level():
    folders = {"calib_jax", "configs", "experiments", "tests"}
    texts = {"README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff"}
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    actual = {
        path.name
        for path in ROOT.iterdir()
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in [".*", *ignored])
    }
    assert actual == {"setup.py", "pyproject.toml", *folders, *texts}


@pytest.fixture
def said_to_setup(monkeypatch):
    """The arguments of setup.py to setuptools."""
    told = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: told.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    return told


def test_the_wheel_holds_calib_jax_alone(said_to_setup):
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "calib_jax").rglob("*.py")}
    assert set(said_to_setup["packages"]) == {".".join(folder.parts) for folder in folders}
    assert "py_modules" not in said_to_setup
    assert "py.typed" in said_to_setup["package_data"]["calib_jax"]
    assert (ROOT / "calib_jax" / "py.typed").exists()


@pytest.mark.parametrize("subpackage", sorted(SUBPACKAGES))
def test_dir_lists_the_public_names(subpackage):
    """Tab completion and help() show what is public: all of it, and no file beside it."""
    package = getattr(calib_jax, subpackage)
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
    assert not {name for name in package.__all__ if name.startswith("_")}
    modules = {name for name in package.__all__ if inspect.ismodule(getattr(package, name))}
    # A calibrator is a module by design: `calibrators.temperature.fit` and `.apply`.
    assert modules == (set(package.catalogue()) & modules if subpackage == "calibrators" else set())


@pytest.mark.parametrize("subpackage", sorted(SUBPACKAGES - {"core", "train", "report"}))
def test_a_subpackage_imports_all_its_files(subpackage):
    """A file that is not imported registers no member of the catalogue."""
    package = getattr(calib_jax, subpackage)
    files = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    known = {file.name for file in files} - {"calib_jax.calibrators.scikit_learn"}  # an extra
    program = f"import sys, calib_jax.{subpackage}; print(*sys.modules)"
    imported = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).split()
    assert known <= set(imported)


def test_subpackages_are_imported_when_they_are_used():
    program = """
import sys
import calib_jax
assert "jax" not in sys.modules
assert set(calib_jax.__all__) <= set(dir(calib_jax))
calib_jax.plots
assert "calib_jax.models" not in sys.modules
# A function is not replaced by the module of its name, whichever is imported first.
import calib_jax.core.arrays
import calib_jax.losses.focal
assert callable(calib_jax.binary) and callable(calib_jax.losses.focal)
from calib_jax import *
assert calib_jax.models is models and binary is calib_jax.binary
assert not hasattr(calib_jax, "unknown")

"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
