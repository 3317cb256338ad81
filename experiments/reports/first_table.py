r"""Publish the sweep of the README's first command: its numbers, its predictions and its table.

    python -m experiments.reports.first_table --workdir=/tmp/first_table

The folder is that of the README's first command. This writes

- experiments/results/digits_sweep.json, the sweep's own sweep.json;
- experiments/results/digits_predictions.npz, logits and labels of all runs, from which
  `experiments.reports.summary` computes all numbers again;
- the rows of the table in documentation/first_table.md, with machine and commit.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Mapping
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
README = pathlib.Path("README.md")
PAGE = pathlib.Path("experiments/documentation/first_table.md")
NUMBERS = pathlib.Path("experiments/results/digits_sweep.json")
PREDICTIONS = pathlib.Path("experiments/results/digits_predictions.npz")
PARTS = ("validation", "test")
AGAIN = "run the README's first command, and this with its folder"
_HEAD = "| loss | error | NLL | ECE | T | NLL after T | ECE after T |\n"
_MACHINE = r"(The numbers are those of) .*? at commit \w+(?:-dirty)?\."

Record = Mapping[str, Any]


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
    with reading.guard(source, "the numbers of a sweep", AGAIN):
        losses = list(dict.fromkeys(cell["loss"] for cell in record["cells"]))
        seeds = sorted({int(run.rpartition(" ")[2]) for run in record["checkpoints"]})
        command = record["provenance"]["command"]
        if command not in (root / README).read_text("utf-8"):
            raise ValueError(f"its command is not the README's, but {command}")
    pages = {PAGE: with_rows((root / PAGE).read_text("utf-8"), record)}
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS:
        read = [
            [
                _read(folder / "runs" / loss / str(seed) / f"predictions_{part}.npz")
                for seed in seeds
            ]
            for loss in losses
        ]
        arrays[f"{part}_logits"] = np.array([[logits for logits, _ in row] for row in read])
        labels = read[0][0][1]
        arrays[f"{part}_labels"] = labels.astype(np.min_scalar_type(labels.max()))
    about = {"losses": losses, "seeds": list(seeds), "provenance": record["provenance"]}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez_compressed(root / PREDICTIONS, allow_pickle=False, **arrays)
    pages[NUMBERS] = source.read_text("utf-8")
    for page, text in pages.items():
        log.replace(root / page, text)
    return [*pages, PREDICTIONS]


def _read(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    with reading.npz(path, "predictions", AGAIN) as arrays:
        return arrays["logits"], arrays["labels"]


def runs(path: pathlib.Path) -> tuple[list[summary.Run], dict[str, Any]]:
    """Read the published predictions as the runs of `summary.summarize`, and their provenance."""
    with reading.npz(path, "the predictions of a sweep", AGAIN) as arrays:
        about = json.loads(bytes(arrays["about"]))
        logits = {part: arrays[f"{part}_logits"] for part in PARTS}
        labels = {part: arrays[f"{part}_labels"].astype(np.int32) for part in PARTS}
    return [
        summary.Run(
            loss,
            seed,
            (logits["validation"][i, j], labels["validation"]),
            (logits["test"][i, j], labels["test"]),
            rows=[],
        )
        for i, loss in enumerate(about["losses"])
        for j, seed in enumerate(about["seeds"])
    ], about["provenance"]


def with_rows(text: str, record: Record) -> str:
    """Return the text of the page with the rows, the machine and the commit of a sweep."""
    cells = {(cell["loss"], cell["phase"], cell["metric"]): cell for cell in record["cells"]}
    losses = dict.fromkeys(cell["loss"] for cell in record["cells"])
    rows = [_row(loss, cells, record["temperatures"][loss]) for loss in losses]
    made = record["provenance"]
    machine = f"an {made['processor']} with {made['cores']} cores at commit {made['commit']}."
    text, found = re.subn(_MACHINE, rf"\1 {machine}", text, flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"{PAGE} has {found} sentences 'The numbers are those of ...'")
    if text.count(_HEAD) != 1:
        raise ValueError(f"{PAGE} has {text.count(_HEAD)} tables with the head {_HEAD.strip()}")
    before, _, after = text.partition(_HEAD)
    table, blank, rest = after.partition("\n\n")
    return before + _HEAD + "\n".join([table.partition("\n")[0], *rows]) + blank + rest


def _row(
    loss: str, cells: Mapping[tuple[str, str, str], Record], temperatures: Iterable[float]
) -> str:
    def with_deviation(phase: str, metric: str) -> str:
        cell = cells[loss, phase, metric]
        return f"{short_number(cell['value'])} ±{short_number(cell['sd'])}"

    texts = [with_deviation(summary.BEFORE, name) for name in ("error", "nll", "ece")]
    texts += [f"{np.mean(list(temperatures)):.2f}"]
    texts += [with_deviation(summary.AFTER, name) for name in ("nll", "ece")]
    return f"| {loss} | {' | '.join(texts)} |"


if __name__ == "__main__":
    cli.run(main)
