"""Every example of the documentation runs: in the docstrings of calib_jax and in the READMEs.

The examples are found by reading the source. A finder that walks the objects of a module, as
`--doctest-modules` does, passes over whatever a decorator has turned into another kind of object.
Each folder of tests runs those of its room: `test_docstring = docstrings_of("core")`.
"""

import ast
import doctest
import importlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calib_jax.core.checks import Catalogue

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "calib_jax").rglob("*.py"))
MODULES = [path for path in SOURCES if ">>>" in path.read_text(encoding="utf-8")]
READMES = sorted(
    path
    for top in ("README.md", "calib_jax/**/README.md", "configs/**/README.md")
    for path in ROOT.glob(top)
)
NUMBER = re.compile(r"[-+]?\d+\.\d*(?:e[-+]?\d+)?")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Checker(doctest.OutputChecker):
    """Compare numbers to the digits that are written: the last bit differs between machines."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        # Arrays are padded to the width of their longest number.
        want, got = (re.sub(r"\s*([\[\](),])\s*", r"\1", text) for text in (want, got))
        wanted, gotten = NUMBER.findall(want), NUMBER.findall(got)
        digits = max((len(number.partition(".")[2]) for number in wanted), default=0)
        tolerance = 0.51 * 10.0**-digits if digits else 0
        if len(wanted) == len(gotten) and all(
            abs(float(w) - float(g)) <= tolerance for w, g in zip(wanted, gotten, strict=True)
        ):
            got = NUMBER.sub(lambda _: wanted.pop(0), got)
        return super().check_output(want, got, optionflags)


def room_of(path: Path) -> str:
    """Return the folder of calib_jax in which a module stands."""
    return path.relative_to(ROOT / "calib_jax").parts[0]


def docstrings(source: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, text and line of each docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node, clean=False)):
            yield getattr(node, "name", "module"), text, node.body[0].lineno


def doctests(room: str) -> Iterator[pytest.param]:
    """Yield the docstrings with examples of the modules of a room."""
    for path in MODULES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if room_of(path) != room:
            continue
        for name, text, line in docstrings(path.read_text(encoding="utf-8")):
            if ">>>" in text:
                yield pytest.param((module, text, path, line), id=f"{module}:{name}")


def code_blocks(text: str) -> list[str]:
    """List the Python blocks of a Markdown text, each preceded by the lines it stands below."""
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return ["\n" * text.count("\n", 0, block.start(1)) + block.group(1) for block in blocks]


def check_docstring(module: str, text: str, path: Path, line: int) -> None:
    names = dict(vars(importlib.import_module(module)))
    catalogues = [value for value in names.values() if isinstance(value, Catalogue)]
    before = [dict(catalogue) for catalogue in catalogues]
    test = doctest.DocTestParser().get_doctest(text, names, module, str(path), line - 1)
    report = io.StringIO()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(Checker(), optionflags=flags).run(test, out=report.write)
    for catalogue, members in zip(catalogues, before, strict=True):
        for example in catalogue.keys() - members.keys():
            del catalogue[example]  # other tests read the catalogues
    assert result.failed == 0, report.getvalue()
    assert result.attempted == len(test.examples) > 0


def docstrings_of(room: str) -> Callable[..., None]:
    """Return the test of the docstrings of a room."""

    @pytest.mark.parametrize("docstring", list(doctests(room)))
    def test_docstring(docstring):
        check_docstring(*docstring)

    return test_docstring


def test_every_room_runs_its_examples():
    for room in {room_of(path) for path in MODULES}:
        tests = (ROOT / "tests" / room).glob("test_*.py")
        assert any(f'docstrings_of("{room}")' in path.read_text("utf-8") for path in tests), room


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.parent == ROOT else pytest.mark.slow) for path in READMES],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_readme(path):
    names = {"__name__": "readme"}
    for block in code_blocks(path.read_text(encoding="utf-8")):
        exec(compile(block, str(path), "exec"), names)
