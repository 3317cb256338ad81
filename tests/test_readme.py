"""The README says what is true today."""

import re
from pathlib import Path

from calib_jax import losses

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def test_its_table_names_objectives_and_nothing_else():
    # A new loss need not stand here (it touches no list), but what stands here must exist.
    table = README.partition("## The losses")[2].partition("\n## ")[0]
    first_columns = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(first_columns))
    assert len(named) > 30
    assert set(named) <= set(losses.catalogue())


def test_it_holds_one_test_command():
    (line,) = re.findall(r"^.*-m pytest$", README, re.MULTILINE)  # .ci/run reads the same line
    assert line.startswith("python3 -m venv .venv && ")
