"""The structure: which subpackage may import which, public names, and the content of the wheel."""

import ast
import functools
import inspect
import pkgutil
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import pytest
import setuptools

import calib_jax

ROOT = Path(__file__).resolve().parent.parent
SUBPACKAGES = {
    *("core", "losses", "metrics", "inference", "calibrators"),
    *("models", "data", "train", "plots", "report"),
}
ALLOWED = {subpackage: {"core", subpackage} for subpackage in SUBPACKAGES}
ALLOWED["inference"] |= {"metrics"}
ALLOWED["report"] |= {"metrics", "inference", "calibrators", "plots"}

# A library takes its options as arguments; flags, configs and TensorFlow belong to the binaries.
FORBIDDEN = {"absl", "ml_collections", "tensorflow", "configs", "experiments", "tests"}
# Slow to import, and needed by few functions.
LAZY = {"matplotlib", "orbax", "tensorflow_datasets"}
# The report and the binaries import only public names of these subpackages ...
PUBLIC_ONLY = SUBPACKAGES - {"core", "report"}
# ... except the formats of the files of runs and data sets, which the binaries share,
SHARED_FORMATS = ("calib_jax.train.checkpoint", "calib_jax.train.log", "calib_jax.data.formats")
# and the folder whose subject is the inside: benchmarks of parts.
OF_INTERNALS = Path("experiments/benchmarks")
# An error of `metrics` names the functions of `inference`, where users look for them.
ALIASES = Path("calib_jax/metrics/__init__.py"), "calib_jax.inference"
THE_PARALLEL_FILE = Path("calib_jax/train/pmap.py")
FILES = [
    path.relative_to(ROOT)
    for top in ("calib_jax", "configs", "experiments")
    for path in sorted((ROOT / top).rglob("*.py"))
]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def imports(tree: ast.AST, path: Path, at_once: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield each imported name, absolute, and whether it is imported as soon as the file is."""
    package = path.parent.parts
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue  # which holds no import
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = (*base, *(node.module or "").split(".")) if node.module else base
            names = [".".join((*base, alias.name)) for alias in node.names]
        yield from ((name, at_once) for name in names if (path, name) != ALIASES)
        later = isinstance(node, ast.FunctionDef) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        yield from imports(node, path, at_once and not later)


def is_public(name: str) -> bool:
    """Check whether an imported name of calib_jax is public, or may be imported all the same."""
    subpackage, *names = name.split(".")[1:] or [""]
    if subpackage not in PUBLIC_ONLY or not names or name.startswith(SHARED_FORMATS):
        return True
    public = names[0] in getattr(calib_jax, subpackage).__all__
    # `calibrators.temperature` is a module; a name inside a file of a subpackage is not public.
    return public and (subpackage == "calibrators" or len(names) == 1)


def complaints(tree: ast.AST, path: Path) -> list[str]:
    """List every forbidden import of one file, `path` being relative to the checkout."""
    top, subpackage = path.parts[:2]
    users = (top == "experiments" or subpackage == "report") and OF_INTERNALS not in path.parents
    found = []
    for name, at_once in imports(tree, path):
        first, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        ours = first == "calib_jax"
        if (
            (top == "calib_jax" and first in FORBIDDEN)
            or (top == "calib_jax" and at_once and first in LAZY)
            or (ours and subpackage in SUBPACKAGES and target not in ALLOWED[subpackage])
            or (ours and users and not is_public(name))
            or (top == "configs" and first in {"calib_jax", "experiments", "tests"})
        ):
            found.append(name)
    return found


def test_no_forbidden_import():
    found = {str(path): complaints(tree_of(path), path) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("calib_jax/losses/focal.py", "from ..metrics import ece"),
        ("calib_jax/losses/focal.py", "def f():\n  from calib_jax import metrics"),
        ("calib_jax/core/numerics.py", "from calib_jax.losses import focal"),
        ("calib_jax/train/loop.py", "import absl.logging"),
        ("calib_jax/plots/bars.py", "try:\n  import matplotlib.pyplot as plt\nexcept E:\n  pass"),
        ("configs/digits.py", "from calib_jax import losses"),
        ("calib_jax/report/score.py", "from calib_jax.inference.residuals import Binned"),
        ("experiments/reports/text.py", "from calib_jax.train.pmap import Processes"),
    ],
)
def test_a_forbidden_import_is_seen(path, source):
    assert len(complaints(ast.parse(source), Path(path))) == 1


def test_one_file_says_pmap():
    for path in FILES:
        if path != THE_PARALLEL_FILE and "pmap" in (ROOT / path).read_text(encoding="utf-8"):
            for node in ast.walk(tree_of(path)):
                assert getattr(node, "attr", getattr(node, "id", None)) != "pmap", path


def test_the_tests_run_under_the_strict_rules_of_conftest():
    assert jax.device_count() > 1 or jax.default_backend() != "cpu"
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones(3) + jnp.ones((2, 3))
    with pytest.raises(jaxtyping.TypeCheckError):
        calib_jax.losses.adafocal_rule(jnp.ones(2), jnp.ones(3))


def test_calib_jax_has_rooms_only():
    folders = {path.parts[1] for path in FILES if path.parts[0] == "calib_jax"}
    # score_command.py starts a command before a room is imported.
    assert folders == SUBPACKAGES | {"__init__.py", "score_command.py"}


def test_the_wheel_holds_calib_jax_alone(monkeypatch):
    told = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: told.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    folders = {path.parent for path in FILES if path.parts[0] == "calib_jax"}
    assert set(told["packages"]) == {".".join(folder.parts) for folder in folders}
    assert "py_modules" not in told
    assert "py.typed" in told["package_data"]["calib_jax"]
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


def test_rooms_are_imported_whole_and_only_when_they_are_used():
    """A file that is not imported registers no member of a catalogue."""
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
print(*sys.modules)
"""
    imported = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).split()
    for subpackage in SUBPACKAGES - {"core", "train", "report"}:
        package = getattr(calib_jax, subpackage)
        files = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        known = {file.name for file in files} - {"calib_jax.calibrators.scikit_learn"}  # an extra
        assert known <= set(imported)
