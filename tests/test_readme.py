"""The README says what is true today."""

import re
from pathlib import Path

from calib_jax import losses

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def test_it_names_every_objective_and_no_other():
    table = README.partition("## The losses")[2].partition("\n## ")[0]
    first_columns = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(first_columns))
    assert sorted(named) == sorted(losses.catalogue())


def test_it_holds_one_test_command():
    (line,) = re.findall(r"^.*-m pytest$", README, re.MULTILINE)  # .ci/run reads the same line
    assert line.startswith("python3 -m venv .venv && ")
