"""The pages: their code and commands run as printed, and the reference has every public name.

The examples of docstrings and READMEs run in `test_doctests.py`.
"""

import doctest
import importlib
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calib_jax
from calib_jax.report.files import score_files
from experiments.documentation import members
from tests.experiments.processes import environment
from tests.test_doctests import Checker, code_blocks

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "experiments" / "documentation"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.md"))}
CHEAP = {"conventions"}  # the others compile programs of shapes of their own
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
        if blocks(text, "python") or blocks(text, "pycon")
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
