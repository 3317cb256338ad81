"""Execute the notebooks from top to bottom, and write their outputs into them.

    python -m experiments.notebooks.execute                  all of them
    python -m experiments.notebooks.execute 02_adafocal      some, by the name of the file
    python -m experiments.notebooks.execute --cells_only     only refresh the first cells

Needs nbclient and ipykernel: pip install 'calib_jax[docs]'. Edit a notebook in Jupyter, then run
this program: it removes what differs between machines and runs, such as times and counters.
"""

import json
import os
import pathlib
import resource
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.notebooks import setup_cells
from experiments.running import cli

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
_CELLS_ONLY = flags.DEFINE_bool("cells_only", False, "Only refresh the first cells.")


def names() -> list[str]:
    """List the notebooks by name, in their order."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> dict[str, Any]:
    """Read a notebook."""
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def executed(notebook: dict[str, Any], *, tiny: bool = False) -> dict[str, Any]:
    """Execute a notebook in a new kernel, from the root of the checkout.

    Args:
      notebook: the notebook; it is not changed.
      tiny: whether the cell of parameters sets TINY.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError as error:
        raise ModuleNotFoundError(
            "notebooks need nbclient and ipykernel: pip install 'calib_jax[docs]'."
        ) from error
    document = nbformat.from_dict(json.loads(json.dumps(notebook)))
    for cell in document.cells:
        cell["source"] = source = setup_cells.text_of(cell)
        if tiny and setup_cells.tag_of(cell) == setup_cells.PARAMETERS:
            cell["source"] = source.replace("TINY = False", "TINY = True")
    # The kernel sees the checkout as this process does.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    client = NotebookClient(document, timeout=600, resources={"metadata": {"path": str(ROOT)}})
    client.execute(env={**os.environ, "PYTHONPATH": path})
    return json.loads(nbformat.writes(document))


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """Remove what differs between runs: counters, times, versions and the name of the kernel."""
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {k: v for k, v in cell["metadata"].items() if k == "tags"}
        setup_cells.set_text(cell, setup_cells.text_of(cell))
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = _outputs(cell["outputs"])
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _outputs(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the pieces of a printed text, and leave out the text beside a picture or a table."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        previous = joined[-1] if joined else {}
        if output["output_type"] == "stream" and previous.get("name") == output["name"]:
            previous["text"] = [*previous["text"], *output["text"]]
            continue
        if output["output_type"] == "execute_result":
            output["execution_count"] = None
        if len(data := output.get("data", {})) > 1:
            del data["text/plain"]
        joined.append(output)
    return joined


def write(name: str, notebook: dict[str, Any]) -> None:
    """Write a notebook as Jupyter does."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    (FOLDER / f"{name}.ipynb").write_text(text, encoding="utf-8")


def _seconds_of_kernels() -> float:
    """Return the CPU time of the kernels so far, which are processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(chosen: Sequence[str]) -> int:
    """Execute the chosen notebooks, or all."""
    for name in chosen or names():
        if name not in names():
            raise cli.Refused(f"no notebook is called {name!r}; there are {', '.join(names())}.")
        notebook = read(name)
        setup_cells.refresh(notebook, f"{name}.ipynb")
        begin = _seconds_of_kernels()
        if not _CELLS_ONLY.value:
            notebook = cli.refusing(executed, notebook)
        write(name, cleaned(notebook))
        print(f"{name}: {_seconds_of_kernels() - begin:.0f} s of a core")
    return 0


if __name__ == "__main__":
    cli.run(main, positional=True)
