"""The documentation site: its pages' code runs, and its reference has every public name."""

import doctest
import importlib
import inspect
import io
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import calib_jax
from experiments.documentation import docstrings, members
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


@pytest.mark.slow
def test_the_training_on_many_devices_equals_that_on_one():
    text = PAGES["many_devices"].read_text(encoding="utf-8")
    assert text.count("jax.device_count()") == 1
    trained = []
    for number in ("jax.device_count()", "1"):
        names = {"__name__": "page"}
        for block in code_blocks(text.replace("jax.device_count()", number)):
            exec(compile(block, str(PAGES["many_devices"]), "exec"), names)
        trained.append(names)
    several, one = trained
    assert several["mesh"].size == 8
    for name in ("loss", "ece", "loss_state", "params"):
        leaves = zip(*(jax.tree.leaves(names[name]) for names in (several, one)), strict=True)
        for actual, wanted in leaves:
            np.testing.assert_allclose(np.asarray(actual), np.asarray(wanted), 1e-4, 1e-5)
    assert several["loss"] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flsd53", "recall", "flsc531", "adafocal"])
def test_the_loop_of_the_page_serves_every_clock(name):
    """A compiled step that holds the state as a constant would train with the initial one."""
    text = PAGES["loop"].read_text(encoding="utf-8")
    call = f'"{name}", milestones=(1, 2)' if name == "flsc531" else f'"{name}"'
    assert text.count('"adafocal"') == 1
    names = {"__name__": "page"}
    for block in code_blocks(text.replace('"adafocal"', call)):
        exec(compile(block, str(PAGES["loop"]), "exec"), names)
    objective, batch = names["objective"], names["batches"][0]
    used = [
        names["step"](names["params"], names["opt_state"], state, *batch)[2]
        for state in (objective.init(3), names["state"])
    ]
    assert (used[0] != used[1]) == (objective.clock != "never")


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


def test_a_docstring_as_markdown():
    text = """Halve $x$.

    Args:
      x: a number
        to halve.
      *others: ignored.

    Returns:
      Its half.

    References:
      Author 2020,
      a title.
      Another 2021.

    >>> halve(2)
    1

    The end.
    """
    assert docstrings.as_markdown(text).split("\n\n") == [
        "Halve $x$.",
        "**Arguments**",
        "- `x`: a number to halve.\n- `*others`: ignored.",
        "**Returns**: Its half.",
        "**References**",
        "- Author 2020, a title.\n- Another 2021.",
        "```pycon\n>>> halve(2)\n1\n```",
        "The end.",
    ]
