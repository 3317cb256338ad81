"""Write the report page of a run from the files in its folder.

Several seeds share a page, in addition to the page of each seed.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import inference, losses, plots, train
from calib_jax.core.files import reading
from calib_jax.report import render
from calib_jax.train import log
from experiments.reports import pages

PAGE, PICTURES = "report", "pictures/"
_ROWS = 1000  # of a prediction

# Panels of curves, drawn if they were logged: title -> log column, without the data set's name.
PANELS = {
    "error": "error",
    "nll": "nll",
    "refinement part of the nll": "refinement_nll",
    "calibration part of the nll": "calibration_nll",
    "refinement part of the brier score": "refinement_brier",
    "calibration part of the brier score": "calibration_brier",
    "ece": "ece",
    "nll of right answers": "by_correctness_correct_nll",
    "nll of wrong answers": "by_correctness_wrong_nll",
    "entropy of right answers": "by_correctness_correct_entropy",
    "entropy of wrong answers": "by_correctness_wrong_entropy",
    "norm of the last layer's inputs": "feature_norm",
    "norm of its gradients": "last_gradient_norm",
}
SETS = {
    "train": "while training",
    "training": "training set",
    "validation": "validation set",
    "test": "test set",
}
WEIGHTS = "norm of its weights"
STATE = "The state of the loss after its last update"


def write(
    folder: pathlib.Path,
    described: str,
    show_epochs: Sequence[float] = (),
    notes: Sequence[str] = (),
) -> list[str]:
    """Write report.md, report.html and the figures of a run, and return their names.

    Args:
      folder: the folder of the run.
      described: the description of the data set.
      show_epochs: epochs whose gradient histograms are drawn; by default the first, the middle
        and the last logged epochs.
      notes: sentences about the run.
    """
    rows = log.read_rows(folder / log.ROWS)
    if not rows:
        return []
    title, recipe = _recipe(folder, rows[-1])
    texts = {STATE: train.last_table(folder), "Environment": "\n".join(_starts(folder))}
    scored = {"The test set, with intervals and after calibration": f"report/{PAGE}.html"}
    page = render.Page(
        title=title,
        head=f"{described}\n\n{recipe}",
        facts=_facts(folder),
        sections=[render.Table("Training", _last(rows[-1]))],
        notes=notes,
        figures=pictures(rows, log.read_rows(folder / log.GRADIENT_NORMS), show_epochs),
        texts={name: text for name, text in texts.items() if text},
        links=scored if (folder / "report" / f"{PAGE}.html").is_file() else {},
        metrics=list(PANELS.values()),
    )
    return _save(folder, page)


def focal_note(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> str:
    """State the focal loss that would calibrate a network of cross-entropy, and what FL-3 would do.

    Args:
      logits: of validation examples, `[rows, classes]`.
      labels: their classes.
      weights: their weights, if they have any; labels of weight 0 are left out.
    """
    if weights is not None:
        logits, labels = logits[weights > 0], labels[weights > 0]
    most = max(_ROWS // 5, min(_ROWS, 100 * _ROWS // logits.shape[-1]))
    every = max(1, -(-len(labels) // most))
    logits, labels = logits[::every], labels[::every]
    try:
        matched = losses.matched_focal(logits, labels)
        other = inference.predict_loss(logits, labels, "focal", gamma=3.0)
    except ValueError as error:
        return f"No loss can be predicted for this network: {error}"
    name = f"{'FL' if matched.loss == 'focal' else 'inverse FL'}-{matched.gamma:.1f}"
    reached = f"{name} would bring it to 1"
    if matched.gamma < 0.05:
        reached = "no other loss is needed"
    elif abs(math.log(matched.temperature)) > 0.01:
        reached = f"even {name} would leave it at {matched.temperature:.2f}"
    if matched.gamma > 5:  # as on the page of experiments/map
        reached += ", but with a gamma above 5 networks missed such predictions or learned nothing"
    gap = 100 * other.gap.value
    return (
        f"The temperature of this network is {matched.cross_entropy:.2f}: {reached}. FL-3 would"
        f" have a temperature of {other.temperature.value:.2f}, and be {abs(gap):.0f} points"
        f" {'over' if gap > 0 else 'under'}confident."
    )


def write_seeds(
    workdir: pathlib.Path | str, folders: Mapping[int, pathlib.Path], described: str
) -> list[str]:
    """Write report.md, report.html and the curves of several seeds into their parent folder."""
    rows = {seed: log.read_rows(folder / log.ROWS) for seed, folder in folders.items()}
    curves = {}
    epochs = [np.array([row["epoch"] for row in seed_rows], float) for seed_rows in rows.values()]
    if all(np.array_equal(item, epochs[0]) for item in epochs):  # patience stopped no seed early
        for title, key in PANELS.items():
            each = [_of_sets(seed_rows, key) for seed_rows in rows.values()]
            names_of_all = [name for name in each[0] if all(name in item for item in each)]
            if names_of_all:
                curves[title] = {
                    name: np.stack([item[name] for item in each]) for name in names_of_all
                }
    title = f"{len(rows)} seeds"
    page = render.Page(
        title=title,
        head=described,
        facts=_facts(next(iter(folders.values()))),
        sections=[render.Table("After the last evaluation", _seeds_table(folders))],
        notes=["Means and standard deviations are over the seeds. Each seed has its own page."],
        figures={"curves": plots.training_curves(curves, epochs[0], title=title)} if curves else {},
        links={f"seed {seed}": f"{folders[seed].name}/{PAGE}.html" for seed in rows},
        metrics=list(PANELS.values()),
    )
    return _save(pathlib.Path(workdir), page)


def _save(folder: pathlib.Path, page: render.Page) -> list[str]:
    figures = {PICTURES + name: figure for name, figure in page.figures.items()}
    page = dataclasses.replace(page, figures=figures)
    return pages.replace(folder, lambda new: render.save(new, PAGE, page, {}))


def of_seeds(folders: Mapping[int, pathlib.Path]) -> str:
    """Format the last rows of all seeds as a table, with their mean and standard deviation."""
    return render.in_markdown(_seeds_table(folders))


def _seeds_table(folders: Mapping[int, pathlib.Path]) -> render.Rows:
    last = {seed: log.read_rows(folder / log.ROWS)[-1] for seed, folder in folders.items()}
    first = next(iter(last.values()))
    keys = [f"{part}_{key}" for part in SETS for key in PANELS.values() if f"{part}_{key}" in first]
    # Seeds that were added later may have other metrics.
    keys = [key for key in keys if all(key in row for row in last.values())]
    table = [["seed", "epoch", *(key.replace("_", " ", 1) for key in keys)]]
    for seed, row in last.items():
        cells = [f"{row[key]:.4f}" if row[key] is not None else "" for key in keys]
        table.append([str(seed), f"{row['epoch']:g}", *cells])
    if len(last) > 1:
        values = [_column([*last.values()], key) for key in keys]
        cells = [f"{column.mean():.4f} ± {column.std(ddof=1):.4f}" for column in values]
        table.append(["mean ± sd", "", *cells])
    return table


def pictures(
    rows: list[dict[str, Any]], norms: list[dict[str, Any]], show_epochs: Sequence[float] = ()
) -> dict[str, Any]:
    """Draw the logged curves over the epochs, and gradient histograms if they were logged."""
    epochs = np.array([row["epoch"] for row in rows], float)
    curves = {title: panel for title, key in PANELS.items() if (panel := _of_sets(rows, key))}
    if "weight_norm" in rows[0]:
        curves[WEIGHTS] = {"network": _column(rows, "weight_norm")}
    figures = {"curves": plots.training_curves(curves, epochs)}
    if norms:
        chosen = _chosen(norms, show_epochs)
        for part in ("training", "validation"):
            counts = {f"epoch {row['epoch']:g}": row[part] for row in chosen if part in row}
            if counts:
                figures[f"gradient_norms_{part}"] = plots.log_histograms(
                    counts,
                    norms[0]["edges"],
                    quantity="norm of an example's gradient in the last layer",
                    title=f"{part} set",
                )
    return figures


def _of_sets(rows: list[dict[str, Any]], key: str) -> dict[str, np.ndarray]:
    return {
        title: _column(rows, f"{prefix}_{key}")
        for prefix, title in SETS.items()
        if any(f"{prefix}_{key}" in row for row in rows)
    }


def _column(rows: list[dict[str, Any]], key: str) -> np.ndarray:
    return np.array([math.nan if row.get(key) is None else row[key] for row in rows], float)


def _chosen(norms: list[dict[str, Any]], epochs: Sequence[float]) -> list[dict[str, Any]]:
    if epochs:
        return [min(norms, key=lambda row: abs(row["epoch"] - epoch)) for epoch in epochs]
    places = dict.fromkeys((0, (len(norms) - 1) // 2, len(norms) - 1))
    return [norms[place] for place in places]


def _facts(folder: pathlib.Path) -> dict[str, Any]:
    """Describe the run by its config and the environments of its starts."""
    config = _config(folder)
    starts = [start for start in log.read_rows(folder / log.ENVIRONMENT) if "versions" in start]
    newest = starts[-1] if starts else {}
    # A run may resume with another number of bins, which applies to the rows from there on.
    bins = dict.fromkeys(str(start["num_bins"]) for start in starts if "num_bins" in start)
    return {
        "data set": config["data"]["name"],
        "network": config["model"]["name"],
        "bins": ", then ".join(bins) or config.get("num_bins"),
        "device": newest.get("device"),
        "versions": newest.get("versions"),
    }


def _config(folder: pathlib.Path) -> dict[str, Any]:
    return reading.json_mapping(folder / "config.json", "a config", "training writes it again")


def _recipe(folder: pathlib.Path, last: Mapping[str, Any]) -> tuple[str, str]:
    """Return a title, and a sentence with the settings of the run."""
    config = _config(folder)
    loss, optimizer = config["loss"], config["optimizer"]
    options = ", ".join(f"{key} = {value}" for key, value in loss["options"].items())
    recipe = (
        f"{loss['name']}{f' ({options})' if options else ''}, reduced by {loss['reduction']};"
        f" {optimizer['name']} with learning rate {optimizer['learning_rate']:g}, batches of"
        f" {config['batch_size']}, seed {config['seed']}; {last['epoch']:g} of"
        f" {config['num_epochs']} epochs. All of it is in config.json."
    )
    return f"{config['data']['name']}, {config['model']['name']}, {loss['name']}", recipe


def _last(row: Mapping[str, Any]) -> render.Rows:
    """Return the last row as a table with one line per data set."""
    panels = {
        title: key
        for title, key in PANELS.items()
        if any(f"{prefix}_{key}" in row for prefix in SETS)
    }
    table = [["after the last epoch", *panels]]
    for prefix, title in SETS.items():
        values = [row.get(f"{prefix}_{key}") for key in panels.values()]
        cells = ["" if value is None else f"{value:.4f}" for value in values]
        if any(cells):
            table.append([title, *cells])
    return table


def _starts(folder: pathlib.Path) -> list[str]:
    """List the starts of the run, one line each, and the machine of the newest start."""
    starts = [start for start in log.read_rows(folder / log.ENVIRONMENT) if "versions" in start]
    lines = [
        "{date}, from step {step}: {command}, commit {commit}, {device}".format(**start)
        for start in starts
    ]
    if starts:
        versions = [f"{name} {version}" for name, version in starts[-1]["versions"].items()]
        machine = "{processor}, {cores} cores, {system}, Python {python}".format(**starts[-1])
        lines.append(f"{machine}; {', '.join(versions)}.")
    return lines
