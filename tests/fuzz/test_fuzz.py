"""The fuzzer counts what readers do, finds what it must find, and its page is complete."""

import pathlib
import re
import time

import pytest

from tests.fuzz import engine
from tests.fuzz.__main__ import _line, page
from tests.fuzz.readers import FORMATS, Format, judged

ROOT = pathlib.Path(__file__).parents[2]
NEW = ("answers, csv", "answers of lm-evaluation-harness", "vectors of texts, record", "costs")


@pytest.mark.parametrize("name", [*NEW, "label map of 16 bits"])
def test_readers_take_random_files(name, tmp_path):
    fuzzed = engine.fuzz(FORMATS[name], tmp_path, judged, 60, 0, guided=False)
    assert fuzzed.failures == []
    assert fuzzed.counts["refused"] > 10
    assert sum(fuzzed.counts.values()) == 60


def digits(path):
    """Read digits; what starts with another character fails in a way that is no refusal."""
    text = path.read_bytes()
    if text[:1] == b"7":
        raise KeyError(text)
    if text[:1] == b"8":
        time.sleep(10)
    if text[:1] not in b"0123456789":
        raise ValueError(f"{path} has no digit\x1b[2J" if text[:1] == b"x" else f"{path}: no digit")


def make_digits(folder):
    (folder / "digits").write_bytes(b"123")
    return folder / "digits"


@pytest.mark.parametrize(
    ("content", "outcome", "message"),
    [
        (b"12", "accepted", None),
        (b"a", "refused", None),
        (b"7", "failed", "KeyError"),
        (b"8", "failed", "Hang: more than 0.05 s"),
        (b"x", "failed", "AssertionError"),
    ],
)
def test_what_is_a_failure(content, outcome, message, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "LONGEST", 0.05)
    fuzzed = engine.Fuzzed(Format(make_digits, digits), make_digits(tmp_path), judged)
    fuzzed.read(content)
    assert [name for name, count in fuzzed.counts.items() if count] == [outcome]
    assert [kept for kept, _ in fuzzed.failures] == ([content] if message else [])
    assert all(message in text for _, text in fuzzed.failures)


def test_a_page_adds_up():
    row = {"reader": "a", "cases": 10, "accepted": 4, "refused": 5, "failed": 1, "guided": False}
    row |= {"slowest": 0.25, "memory": 3e6}
    origin = {key: key for key in ("processor", "cores", "system", "python", "commit", "date")}
    text = page([row, row | {"reader": "b"}], origin | {"versions": {}}, ["--cases=10"])
    assert "20 cases of 2 readers, 10 refused, 2 failed; slowest case 0.25 s; most memory 3 MB" in (
        text
    )
    assert "| a | 10 | 4 | 5 | 1 | 250 | 3 |" in text.splitlines()
    assert "not guided by coverage" in text
    assert _line(row | {"reader": "b"}) in text


def test_the_published_page_has_every_reader_and_no_failure():
    text = (ROOT / "experiments" / "results" / "fuzz.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \| [\d,]+ \| [\d,]+ \| (\d+) \|", text, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(FORMATS)
    assert all(int(cases.replace(",", "")) >= 10_000 for _, cases, _ in rows)
    assert all(failed == "0" for _, _, failed in rows)
