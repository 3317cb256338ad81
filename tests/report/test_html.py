"""The page of a report: balanced, self-contained, escaped, with all numbers of report.md."""

import html.parser
import re

import pytest

from calib_jax.report import pictures, render, results

from .fabricated import HOSTILE, scored

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
def page():
    report = scored()
    return render.as_html(results.page(report, pictures(report)))


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
    markdown = results.as_markdown(scored())
    numbers = set(re.findall(r"[-+]?\d[\d,]*\.?\d*", markdown))
    assert len(numbers) > 30
    assert [number for number in numbers if number not in text] == []
    for fact in ("90%", "1,980", "calib_jax 1.2.3, jax 4.5.6", "What the numbers mean"):
        assert fact in text


def test_all_text_is_escaped(page):
    assert HOSTILE in "".join(read(page).text)
    assert "<script>alert" not in page
    assert "javascript:" not in page


def test_metrics_are_explained(page):
    assert render.definition("ece") in " ".join("".join(read(page).text).split())
    assert render.definition("squared_calibration_error").endswith("is shown as 0.")


def test_the_markdown_shows_the_figures(tmp_path):
    names = scored().save(tmp_path)
    assert "report.html" in names
    shown = re.findall(r"\]\((.*?\.png)\)", (tmp_path / "report.md").read_text())
    assert shown == [name for name in names if name.endswith(".png")]
    read((tmp_path / "report.html").read_text())
