"""Print the table of dependencies in `safety.md`, from setup.py, .ci/constraints.txt and metadata.

python -m experiments.documentation.dependencies
"""

import importlib.metadata
import pathlib
import re
import runpy
from collections.abc import Mapping
from typing import Any
from unittest import mock

from calib_jax.report import render

ROOT = pathlib.Path(__file__).parents[2]


def required() -> dict[str, tuple[str, str]]:
    """Return the bound of each dependency, and the extra that needs it, or "all"."""
    with mock.patch("setuptools.setup") as setup:
        runpy.run_module("setup")
    given: Mapping[str, Any] = setup.call_args.kwargs
    extras: dict[str, Any] = {"all": given["install_requires"], **given["extras_require"]}
    # The extras of developers hold those of users, too.
    names = sorted(extras, key=lambda extra: extra in ("test", "dev"))
    listed = [(extra, each) for extra in names for each in extras[extra]]
    bounds: dict[str, tuple[str, str]] = {}
    for extra, requirement in listed:
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None
        bounds.setdefault(name[0], (requirement[name.end() :], extra))
    return bounds


def licence(package: str) -> str:
    """Return the licence that an installed package declares."""
    about = importlib.metadata.metadata(package)
    stated = [about[key] for key in ("License-Expression", "License") if key in about]
    declared = stated[0] if stated else ""
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or ()
        if line.startswith("License :: ")
    ]
    return declared if 0 < len(declared) <= 60 else ", ".join(classified) or "not declared"


def rows() -> render.Rows:
    """Return the head and one row for each dependency."""
    text = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8")
    passed = {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    }
    table = [["package", "for", "oldest", "passed", "licence"]]
    for name, (bound, extra) in required().items():
        try:
            stated = licence(name)
        except importlib.metadata.PackageNotFoundError:
            stated = "not installed"
        version = passed.get(re.sub(r"[-_.]+", "-", name).lower(), "not tried")
        table.append([name, extra, bound, version, stated])
    return table


if __name__ == "__main__":
    print(render.in_markdown(rows(), is_markup=True))
