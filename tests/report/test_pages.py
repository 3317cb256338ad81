"""The pages of a report: escaped, balanced, complete; and what its README says of them."""

import csv
import dataclasses
import html
import html.parser
import io
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from calib_jax.core import texts
from calib_jax.report import render, results
from calib_jax.report.figures import file_names
from tests.experiments.processes import ROOT

from . import HOSTILE, scored

ADDRESSES = {"src", "href", "srcset", "action", "data", "poster"}


class Reader(html.parser.HTMLParser):
    """Check that tags are balanced; collect the text, identifiers and addresses."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.scripts = [], [], []
        self.identifiers, self.addresses, self.count = [], [], {}

    def handle_starttag(self, tag, attributes):
        self.count[tag] = self.count.get(tag, 0) + 1
        for name, value in attributes:
            assert not name.startswith("on")
            if name == "id":
                self.identifiers.append(value)
            if name in ADDRESSES:
                self.addresses.append(value)
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] in ("script", "style") else self.text).append(
            data
        )


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save a report beside a folder of somebody else, once."""
    folder = tmp_path_factory.mktemp("report")
    (folder / ".mine.old.partial").mkdir()
    (folder / ".mine.old.partial" / "work.txt").write_text("work")
    return folder, scored().save(folder)


@pytest.fixture
def page(folder):
    return (folder[0] / "report.html").read_text(encoding="utf-8")


def test_the_page_is_balanced_and_needs_nothing_else(page):
    reader = read(page)
    assert len(reader.identifiers) == len(set(reader.identifiers))
    assert reader.count["script"] == 1
    assert reader.count["svg"] == 3
    for address in reader.addresses:
        assert address == "data:," or address.removeprefix("#") in reader.identifiers
    code = "".join(reader.scripts)
    assert "http" not in code
    assert "default-src 'none'" in page


def test_all_numbers_of_the_markdown_are_on_the_page(page):
    text = " ".join("".join(read(page).text).split())
    markdown = scored()._repr_markdown_()
    numbers = set(re.findall(r"[-+]?\d[\d,]*\.?\d*", markdown))
    assert len(numbers) > 30
    assert [number for number in numbers if number not in text] == []
    for fact in ("90%", "1,980", "calib_jax 1.2.3, jax 4.5.6", "What the numbers mean"):
        assert fact in text


def test_columns_have_the_headings_of_the_markdown(page):
    headings = re.findall(r"<th scope=\"col\">(.*?)</th>", page)
    on_page = [html.unescape(re.sub("<.*?>", "", heading)) for heading in headings]
    for line in scored()._repr_markdown_().replace("\n|---", "|---").splitlines():
        if "|---" in line:
            for heading in line.partition("|---")[0].strip("| ").split(" | "):
                assert html.unescape(heading.replace("`", "")) in on_page


def test_all_text_is_escaped(page):
    assert HOSTILE in "".join(read(page).text)
    assert "<script>alert" not in page
    assert "javascript:" not in page


def test_metrics_are_explained(page):
    assert render.definition("ece") in " ".join("".join(read(page).text).split())
    assert "squared calibration error" in render.definition("squared_calibration_error")
    assert "compare_calibration" not in page  # there is no row of its test


def test_a_report_shows_its_figures_and_replaces_its_own_files_alone(folder, tmp_path):
    mine, names = folder
    assert "report.html" in names
    shown = re.findall(r"\]\((.*?\.png)\)", (mine / "report.md").read_text())
    assert shown == [name for name in names if name.endswith(".png")]
    shutil.copytree(mine, tmp_path, dirs_exist_ok=True)
    one = {"as given": scored().reliability["as given"]}
    fewer = dataclasses.replace(scored(), reliability=one).save(tmp_path)  # its own files
    assert {*fewer} < {*names}
    shown = re.findall(r"\]\((.*?\.png)\)", (tmp_path / "report.md").read_text())
    assert shown == [name for name in fewer if name.endswith(".png")]
    assert scored().save(tmp_path) == names  # a figure that only the first report had
    assert (tmp_path / ".mine.old.partial" / "work.txt").read_text() == "work"
    (tmp_path / "other").mkdir()
    thesis = tmp_path / "other" / "report.md"
    thesis.write_text("my thesis")
    with pytest.raises(ValueError, match=r"report\.md is a file that no report wrote"):
        scored().save(tmp_path / "other")
    assert [*thesis.parent.iterdir()] == [thesis]
    assert thesis.read_text() == "my thesis"


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
    assert not re.search(r"(?<!\\)(\*c|`d)", text)  # emphasis and code of a name, in sentences too
    for block in text.split("\n\n"):  # every row of a table has the cells of its head
        if block.startswith("|"):
            assert len({line.replace(r"\|", "").count("|") for line in block.splitlines()}) == 1


@hostile
def test_text_and_markdown_hold_no_escapes_and_no_markup(name):
    made = named(name)
    check_text(str(made))
    for page in (made._repr_markdown_(), results.as_model_card(made)):
        check_markdown(page)
    assert texts.one_line(name) in str(made)  # it is shown, not dropped


@hostile
def test_a_cell_of_csv_is_no_formula_and_no_second_line(name):
    text = results.as_csv(named(name))
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
    assert max(len(name.encode()) for name in names.values()) == 150 + len("_2")


README = (ROOT / "calib_jax" / "report" / "README.md").read_text(encoding="utf-8")
EXPLAINED = README.split("## What the numbers mean")[1].split("## Options")[0]
NUMBER = re.compile(r"[-+]?\d*\.\d+")


@pytest.fixture(scope="module")
def forecasts():
    (code,) = re.findall(r"^```python\n(.*?)^```$", EXPLAINED, re.MULTILINE | re.DOTALL)
    names = {}
    exec("from calib_jax import report\nprint = lambda _: None\n" + code, names)
    return names["forecasts"]


def test_the_table_is_that_of_the_code(forecasts):
    """Also on other versions of JAX, whose random numbers may differ: within .006."""
    (table,) = re.findall(r"^```text\n(.*?)^```$", EXPLAINED, re.MULTILINE | re.DOTALL)
    shown = (filter(None, text.splitlines()) for text in (str(forecasts), table))
    for actual, wanted in zip(*shown, strict=True):
        assert actual.split()[0] == wanted.split()[0]
        # Sentences count in points, hundredths of the table's numbers.
        tolerance = (0.02 if " p " in wanted else 0.006) * (100 if ":" in wanted else 1)
        numbers = [[float(number) for number in NUMBER.findall(line)] for line in (actual, wanted)]
        np.testing.assert_allclose(*numbers, atol=tolerance)


def test_the_words_hold(forecasts):
    stated, rainy = np.repeat([0.9, 0.6], 500), np.repeat([0.8, 0.6], 500)
    assert forecasts.value("error") == pytest.approx(1 - np.mean(rainy), abs=1e-6)
    nll = -np.mean(rainy * np.log(stated) + (1 - rainy) * np.log(1 - stated))
    assert forecasts.value("nll") == pytest.approx(nll, abs=1e-6)
    assert round(nll, 4) == 0.6089
    assert round(np.log(2), 4) == 0.6931
    brier = 2 * np.mean(rainy * (1 - stated) ** 2 + (1 - rainy) * stated**2)
    assert forecasts.value("brier") == pytest.approx(brier, abs=1e-6)
    assert forecasts.value("ece") == pytest.approx(np.mean(np.abs(stated - rainy)), abs=1e-5)
    parts = forecasts.value("refinement_nll") + forecasts.value("calibration_nll")
    assert parts == pytest.approx(forecasts.value("nll"), abs=1e-6)
    same = forecasts.value("refinement_nll", "milder")
    assert forecasts.value("refinement_nll") == pytest.approx(same, abs=1e-4)
    # The floor and the p-value, from the two binomial distributions.
    number = np.arange(501)
    gaps = [np.abs(number / 500 - p) / 2 for p in (0.9, 0.6)]
    laws = [stats.binom(500, p).pmf(number) for p in (0.9, 0.6)]
    eces, law = gaps[0][:, None] + gaps[1][None], laws[0][:, None] * laws[1][None]
    assert np.sum(law * eces) == pytest.approx(0.0141, abs=5e-5)
    assert np.sum(law[eces >= 0.05 - 1e-9]) == pytest.approx(0.0002, abs=5e-5)


def test_a_terminal_shows_one_screen_and_names_the_rest():
    made = scored()
    many = [dataclasses.replace(part, part=str(k)) for k, part in enumerate(9 * made.groups)]
    shown = [str(dataclasses.replace(made, groups=made.groups[::step])) for step in (1, 2)]
    assert ["predictions" in text for text in shown] == [True, False]  # one model needs no name
    made = dataclasses.replace(made, groups=many)
    lines = render.as_text(results.page(made), render.LINES).splitlines()
    assert len(lines) <= render.LINES
    assert lines[-1] == "Groups: --notes."
    assert "\n53 " in str(made)  # Python has no --notes
    page = results.page(made)
    text = render.as_text(page, explained=False)
    cut = render.as_text(page, text.count("\n") + 1, explained=False)
    assert cut == text.replace(" in the saved report", ": --notes")
    hidden = len(page.notes) + len(page.folded) - 2
    assert f"\n{hidden} more notes in the saved report." in str(made)


def test_a_terminal_shows_the_metrics_of_many_models():
    many = dataclasses.replace(scored(), headlines=["a model"] * 40)
    text = render.as_text(results.page(many), render.LINES)
    assert "\nece " in text
    rest = "Groups, Differences, Noise floors: --notes."
    assert text.endswith(f"\n{rest}")
    wide = [dataclasses.replace(row, metric=f"{row.metric:_>60}") for row in many.rows]
    text = render.as_text(results.page(dataclasses.replace(many, rows=wide)), render.LINES)
    assert text.endswith(f"\nmore of Metrics, {rest}")
