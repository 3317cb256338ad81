"""Configuration of Sphinx. The root of the checkout is the source folder.

    python -m sphinx -W -b html -c experiments/documentation . FOLDER

So the READMEs are pages of the site, and the links between them, which work in a checkout, are
checked by the build. The notebooks are shown with the outputs that they were saved with.
"""

import importlib
import re
from typing import Any

import calib_jax
from experiments.documentation.members import objectives, page
from experiments.notebooks.setup_cells import REPOSITORY

project = "calib_jax"
author = "the authors of calib_jax"
version = release = calib_jax.__version__
extensions = ["myst_nb", "sphinx.ext.mathjax"]
root_doc = "experiments/documentation/index"
include_patterns = [
    "README.md",
    "**/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "experiments/documentation/**.md",
    "experiments/notebooks/**.ipynb",
    "experiments/results/*.md",
    "experiments/results/map/*.md",
    "experiments/results/papers/*.md",
]
exclude_patterns = [".*", "build", "dist", "tests/golden/**"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "sphinx_book_theme"
html_title = "calib_jax"
html_extra_path = ["root"]  # an index.html that leads to the first page
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "show_navbar_depth": 1,
    "use_download_button": False,
    "navbar_persistent": [],  # the search field stands in the sidebar
}
if REPOSITORY:
    html_theme_options |= {"repository_url": REPOSITORY, "use_repository_button": True}


def add_members(app: Any, docname: str, source: list[str]) -> None:
    """Replace the lines `% members of MODULE` and `% objectives` of a page by their entries."""

    def entries(match: re.Match[str]) -> str:
        return page(importlib.import_module(match[1]))

    source[0] = re.sub(r"^% members of (\S+)$", entries, source[0], flags=re.MULTILINE)
    if "\n% objectives" in source[0]:
        source[0] = source[0].replace("\n% objectives", f"\n{objectives()}")


def setup(app: Any) -> None:
    """Connect `add_members`; Sphinx calls this function."""
    app.connect("source-read", add_members)
