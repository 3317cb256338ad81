"""The first cells of every notebook: the badge, the installation and the parameters."""

from typing import Any

# The address of the repository, such as https://github.com/OWNER/NAME. It is empty until there is
# one: then the notebooks install a wheel beside them. After a change run
# `python -m experiments.notebooks.execute --cells_only`.
REPOSITORY = ""

INSTALL, PARAMETERS = "install", "parameters"

_INSTALL = """\
# The address of a git repository of calib_jax, such as https://github.com/OWNER/NAME. If it is
# empty, put a wheel of calib_jax beside this notebook: in Colab, upload calib_jax-*.whl.
repository = "{repository}"

import glob
import importlib.util
import shutil
import subprocess
import sys

if importlib.util.find_spec("calib_jax") is None:
    wheels = sorted(glob.glob("calib_jax-*.whl"))
    if not (repository or wheels):
        raise SystemExit("Set repository above, or put a wheel of calib_jax beside this notebook.")
    package = f"calib_jax @ git+{{repository}}" if repository else wheels[-1]
    jax = "jax[cuda12]" if shutil.which("nvidia-smi") else "jax"
    jax = "jax[tpu]" if glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*") else jax
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", jax, package], check=True)
"""

_PARAMETERS = """\
# True runs every cell in seconds, on few examples.
TINY = False
"""


def sources(repository: str = REPOSITORY) -> dict[str, str]:
    """Return the sources of the cells by their tag."""
    install = _INSTALL.format(repository=repository)
    return {INSTALL: install.rstrip("\n"), PARAMETERS: _PARAMETERS.rstrip("\n")}


def badge(file: str, repository: str = REPOSITORY) -> str:
    """Return the link that opens a notebook in Colab; "" without a repository on GitHub.

    >>> badge("01.ipynb", "https://github.com/OWNER/NAME").rpartition("/github/")[2]
    'OWNER/NAME/blob/main/experiments/notebooks/01.ipynb)'
    >>> badge("01.ipynb", "")
    ''
    """
    host, _, path = repository.partition("https://github.com/")
    if host or not path:
        return ""
    image = "https://colab.research.google.com/assets/colab-badge.svg"
    link = f"https://colab.research.google.com/github/{path}/blob/main/experiments/notebooks/{file}"
    return f"[![Open in Colab]({image})]({link})"


def tag_of(cell: dict[str, Any]) -> str:
    """Return the tag of a cell that this file writes, else ""."""
    tags = cell["metadata"].get("tags", [])
    return next((tag for tag in (INSTALL, PARAMETERS) if tag in tags), "")


def refresh(notebook: dict[str, Any], file: str, repository: str = REPOSITORY) -> None:
    """Write today's badge, installation and parameters into a notebook."""
    title = notebook["cells"][0]
    lines = [line for line in text_of(title).splitlines() if not line.startswith("[![Open in")]
    link = badge(file, repository)
    set_text(title, "\n".join([link, *lines] if link else lines))
    for cell in notebook["cells"]:
        if tag := tag_of(cell):
            set_text(cell, sources(repository)[tag])


def text_of(cell: dict[str, Any]) -> str:
    """Return the source of a cell, which the format stores as a text or as lines."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def set_text(cell: dict[str, Any], text: str) -> None:
    """Set the source of a cell, as lines."""
    cell["source"] = text.splitlines(keepends=True)
