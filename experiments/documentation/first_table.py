r"""Publish the sweep of the README's first command: its numbers, its predictions and its table.

    python -m experiments.documentation.first_table --workdir=/tmp/first_table

The folder is that of the README's first command. This writes

- experiments/results/digits_sweep.json, the sweep's own sweep.json;
- experiments/results/digits_predictions.npz, logits and labels of all runs, from which
  `experiments.reports.summary` computes all numbers again;
- the rows of the table in documentation/first_table.md, with machine and commit.
"""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags

from calib_jax.core.files import reading
from calib_jax.train import log
from experiments.reports import summary
from experiments.reports.summary_text import short_number
from experiments.running import cli

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the sweep.")

ROOT = pathlib.Path(__file__).parents[2]
PAGE = pathlib.Path("experiments/documentation/first_table.md")
NUMBERS = pathlib.Path("experiments/results/digits_sweep.json")
PREDICTIONS = pathlib.Path("experiments/results/digits_predictions.npz")
PARTS = ("validation", "test")
AGAIN = "run the README's first command, and this with its folder"
_TABLE = r"(\| loss \| error \| NLL .*\n\|[-|]+\n)(\|.*\n)+"
_MACHINE = r"(The numbers are those of) .*? at commit \w+(?:-dirty)?\."


def main() -> int:
    """Write all files."""
    if _WORKDIR.value is None:
        raise cli.Refused("give --workdir=FOLDER, the folder of the README's first command.")
    for path in cli.refusing(publish, pathlib.Path(_WORKDIR.value), ROOT):
        print(f"written to {path}")
    return 0


def publish(folder: pathlib.Path, root: pathlib.Path) -> list[pathlib.Path]:
    """Write the numbers, the predictions and the rows of a sweep into a checkout.

    Args:
      folder: the folder of the sweep.
      root: the root of the checkout.
    """
    source = folder / "sweep.json"
    record = reading.json_mapping(source, "the numbers of a sweep", AGAIN)
    command = record["provenance"]["command"]
    if command not in (root / "README.md").read_text("utf-8"):
        raise ValueError(f"{source}: its command is not the README's, but {command}")
    page = with_rows((root / PAGE).read_text("utf-8"), record)
    losses = list(dict.fromkeys(cell["loss"] for cell in record["cells"]))
    seeds = sorted({int(run.rpartition(" ")[2]) for run in record["checkpoints"]})
    arrays: dict[str, Any] = {}
    for part in PARTS:
        logits = []
        for loss in losses:
            for seed in seeds:
                path = folder / "runs" / loss / str(seed) / f"predictions_{part}.npz"
                with reading.npz(path, "predictions", AGAIN) as saved:
                    logits.append(saved["logits"])
                    labels = saved["labels"]
        shape = (len(losses), len(seeds), *logits[0].shape)
        arrays[f"{part}_logits"] = np.reshape(logits, shape)
        arrays[f"{part}_labels"] = labels.astype(np.min_scalar_type(labels.max()))
    about = {"losses": losses, "seeds": seeds, "provenance": record["provenance"]}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez_compressed(root / PREDICTIONS, allow_pickle=False, **arrays)
    log.replace(root / PAGE, page)
    log.replace(root / NUMBERS, source.read_text("utf-8"))
    return [PAGE, NUMBERS, PREDICTIONS]


def runs(path: pathlib.Path) -> tuple[list[summary.Run], dict[str, Any]]:
    """Read the published predictions as the runs of `summary.summarize`, and their provenance."""
    with reading.npz(path, "the predictions of a sweep", AGAIN) as arrays:
        about = json.loads(bytes(arrays["about"]))
        logits = [arrays[f"{part}_logits"] for part in PARTS]
        labels = [arrays[f"{part}_labels"].astype(np.int32) for part in PARTS]
    made = []
    for i, loss in enumerate(about["losses"]):
        for j, seed in enumerate(about["seeds"]):
            validation, test = ((of[i, j], y) for of, y in zip(logits, labels, strict=True))
            made.append(summary.Run(loss, seed, validation, test, rows=[]))
    return made, about["provenance"]


def with_rows(text: str, record: Mapping[str, Any]) -> str:
    """Return the text of the page with the rows, the machine and the commit of a sweep."""
    cells = {(cell["loss"], cell["phase"], cell["metric"]): cell for cell in record["cells"]}

    def number(loss: str, phase: str, metric: str) -> str:
        cell = cells[loss, phase, metric]
        return f"{short_number(cell['value'])} ±{short_number(cell['sd'])}"

    rows = ""
    for loss in dict.fromkeys(cell["loss"] for cell in record["cells"]):
        before = [number(loss, summary.BEFORE, name) for name in ("error", "nll", "ece")]
        after = [number(loss, summary.AFTER, name) for name in ("nll", "ece")]
        temperature = f"{np.mean(record['temperatures'][loss]):.2f}"
        rows += f"| {loss} | {' | '.join([*before, temperature, *after])} |\n"
    made = record["provenance"]
    machine = f"an {made['processor']} with {made['cores']} cores at commit {made['commit']}."
    text, sentences = re.subn(_MACHINE, rf"\1 {machine}", text, flags=re.DOTALL)
    text, tables = re.subn(_TABLE, lambda match: match[1] + rows, text)
    if (sentences, tables) != (1, 1):
        raise ValueError(
            f"{PAGE} must have one table of losses and one sentence 'The numbers are those of ...',"
            f" and has {tables} and {sentences}."
        )
    return text


if __name__ == "__main__":
    cli.run(main)
