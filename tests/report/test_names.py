"""Names of classes, groups, models and files are any text, and each format escapes them."""

import csv
import dataclasses
import io

import pytest

from calib_jax.core import texts
from calib_jax.report import results as render
from calib_jax.report.figures import file_names

from .fabricated import scored

ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202egnp\x9b31m"
NAMES = {
    "a terminal's escapes": ESCAPES,
    "a line break": "cat\n\n# Owned\n",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a formula": '=HYPERLINK("http://example.com","x")',
    "a formula after a tab": "\t@SUM(1)",
    "Markdown": "a|b](javascript:alert(1)) *c* `d` &lt;",
    "bytes that are no text": "caf\udce9",
}
hostile = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


def named(name):
    """Return a report that has this name everywhere."""
    made = scored()
    old = made.rows[1].predictions
    rows = [
        dataclasses.replace(row, predictions=row.predictions.replace(old, name))
        for row in made.rows
    ]
    changes = [dataclasses.replace(change, after=name) for change in made.changes]
    parts = [
        dataclasses.replace(part, part=name, predictions=part.predictions.replace(old, name))
        for part in made.groups[:2]
    ]
    return dataclasses.replace(
        made,
        rows=rows,
        changes=changes,
        groups=parts,
        classes=parts,
        reliability=dict(zip(("as given", name), made.reliability.values(), strict=True)),
        notes=[f"a note on {name}"],
        settings=made.settings | {"predictions": name, "command": f"calib-score {name!s}"},
    )


def check_text(text):
    assert text.replace("\n", "").isprintable()
    assert "Owned" not in text.splitlines()


def check_markdown(text):
    check_text(text)
    assert "# Owned" not in [line.strip() for line in text.splitlines()]
    for harm in ("<script", "<img", "](javascript"):
        assert harm not in text
    for block in text.split("\n\n"):  # every row of a table has the cells of its head
        if block.startswith("|"):
            assert len({line.replace(r"\|", "").count("|") for line in block.splitlines()}) == 1


@hostile
def test_text_and_markdown_hold_no_escapes_and_no_markup(name):
    made = named(name)
    check_text(str(made))
    for page in (made._repr_markdown_(), render.as_model_card(made)):
        check_markdown(page)
    assert texts.one_line(name) in str(made)  # it is shown, not dropped


@hostile
def test_a_cell_of_csv_is_no_formula_and_no_second_line(name):
    text = render.as_csv(named(name))
    check_text(text)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(text.splitlines()) - 1
    for row in rows:
        for cell in row.values():
            try:
                float(cell or 0)
            except ValueError:
                assert not cell.lstrip().startswith(("=", "+", "-", "@"))
    assert {row["predictions"] for row in rows} >= {"as given"}


def test_names_that_are_long_or_differ_in_no_letter_have_figures_of_their_own():
    names = file_names(["a b", "a-b", "A b", "y" * 300, "\u00e9" * 300, "y" * 299])
    assert [*names.values()][:3] == ["a_b", "a_b_2", "A_b_3"]
    assert len(set(names.values())) == len(names)
    assert max(len(name.encode()) for name in names.values()) < 200
