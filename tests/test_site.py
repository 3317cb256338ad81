"""The documentation site: its pages' code runs, and its reference has every public name."""

import doctest
import importlib
import inspect
import io
import re
from pathlib import Path

import pytest

import calib_jax
from experiments.documentation import members
from tests.test_doctests import Checker, code_blocks

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "experiments" / "documentation"
PAGES = {path.stem: path for path in sorted(SOURCES.glob("*.md"))}
CHEAP = {"conventions"}  # the others compile programs of shapes of their own
SUBPACKAGES = ["calib_jax"] + [
    value.__name__
    for name in calib_jax.__all__
    if inspect.ismodule(value := getattr(calib_jax, name))
]


def consoles(text: str) -> str:
    """Join the blocks of a page that show a Python console."""
    return "\n".join(re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def has_code(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return bool(code_blocks(text) or consoles(text))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=() if name in CHEAP else pytest.mark.slow)
        for name, path in PAGES.items()
        if has_code(path)
    ],
)
def test_the_code_of_a_page(page):
    text = PAGES[page].read_text(encoding="utf-8")
    names = {"__name__": "page"}
    for block in code_blocks(text):
        exec(compile(block, str(PAGES[page]), "exec"), names)
    examples = doctest.DocTestParser().get_doctest(consoles(text), names, page, page, 0)
    report = io.StringIO()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert (
        not doctest.DocTestRunner(Checker(), optionflags=flags)
        .run(examples, out=report.write)
        .failed
    ), report.getvalue()


def test_relative_links_lead_to_files():
    """The build of the site checks anchors too, but takes a link it cannot parse for text."""
    folders = ("calib_jax", "configs", "experiments", "tests")
    pages = [
        *ROOT.glob("*.md"),
        *(page for name in folders for page in (ROOT / name).rglob("*.md")),
    ]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)]+)\)", without_code(page.read_text(encoding="utf-8")))
        if not re.match(r"[a-z]+:|#", link)
    ]
    assert len(links) > 50
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page, link in links
        if not (page.parent / link.split("#")[0]).exists()
    ]
    assert not missing


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


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
