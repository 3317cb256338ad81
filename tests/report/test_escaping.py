"""Names that come from files do no harm in any format of a report."""

import csv
import io
import subprocess
import sys

import numpy as np
import pytest

from calib_jax import report
from calib_jax.core import texts

HOSTILE = "\x1b]0;owned\x07\x1b[31m=cmd|'/C calc'!A0<script>alert(1)</script>\n# heading"
LOGITS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
LABELS = np.arange(60) % 3


@pytest.fixture(scope="module")
def scored():
    groups = np.array([HOSTILE, "=1+1", "-2+3", "@SUM(A1)"])[np.arange(60) % 4]
    return report.score(
        LOGITS,
        LABELS,
        metrics=["ece", "nll"],
        num_resamples=20,
        groups=groups,
        per_class=True,
        class_names=["cat", HOSTILE, "+dog"],
        name=HOSTILE[:30] + "<b>",
        calibrate="temperature",
        cross_fit=2,
        compare={"=other": 2 * LOGITS},
    )


def harmless(text):
    return all(c.isprintable() or c == "\n" for c in text)


def test_a_terminal_gets_no_escapes(scored):
    text = str(scored)
    assert harmless(text)
    assert r"\x1b[31m" in text
    assert not any(line.startswith("# heading") for line in text.splitlines())


def test_markdown_gets_no_tags_and_no_lines(scored):
    for text in (scored._repr_markdown_(), report.tables.as_model_card(scored)):
        assert harmless(text)
        assert "<script" not in text
        assert "<b>" not in text
        assert not any(line.startswith("# heading") for line in text.splitlines())


def test_a_spreadsheet_gets_no_formulas(scored):
    rows = list(csv.DictReader(io.StringIO(report.tables.as_csv(scored))))
    assert any(row["part"] == "'=1+1" for row in rows)
    for row in rows:
        for cell in row.values():
            try:
                float(cell)
            except ValueError:
                assert not cell.lstrip().startswith(("=", "+", "-", "@"))


def test_numbers_in_text_stay():
    cells = {"a": "-0.25", "b": -0.25, "c": "+1e-3", "d": None, "e": "cat"}
    assert texts.in_csv(cells) == cells


def test_errors_of_the_command_get_no_escapes(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("label,\x1b[31mcat,dog\nfish,0.5,2\ncat,1,2\n")
    start = "import sys; from calib_jax.score_command import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", start, path], capture_output=True, text=True)
    assert "has 'fish', which is no column of a class" in done.stderr
    assert harmless(done.stderr + done.stdout)
