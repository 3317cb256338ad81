"""Tables of the networks trained here, beside the published numbers: results/papers/tables.md.

They are computed from the records of the runs (`records.py`), also of those that no verdict needs.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from calib_jax import metrics
from calib_jax.report import tables
from experiments.papers import published
from experiments.papers.entries import text_trainings as texts
from experiments.papers.entries import trainings
from experiments.papers.entries.recall import trained as recall
from experiments.papers.entries.text_trainings import (
    newsgroups_bert,
    newsgroups_cnn,
    newsgroups_learned,
    sst,
    sst_learned,
)
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import comparisons, estimates
from experiments.papers.judge.estimates import Columns, Predictions
from experiments.papers.judge.values import Value
from experiments.papers.store import records
from experiments.papers.store.records import Trained
from experiments.running import provenance

FILE = "tables.md"
HEAD = """# Networks trained here, beside the published ones

`python -m experiments.papers --tables` writes this page from the records of the runs in `runs/`.
Errors and calibration errors are in percent and the NLL is multiplied by 100, as in the papers:
mean ± standard deviation over the seeds, and in parentheses the published number of the larger
network, if there is one. T is the temperature of the least validation ECE on the grid 0.1, 0.2,
..., 10; on pixels that of the least validation NLL. Of runs whose record has no logits, only error
and ECE are known. Noise raises these calibration errors; the [verdicts](README.md) test differences
without it.
"""
# Where the papers print each column: source, table, metric, phase.
PLACES = {
    "error": (("mukhoti", "T2", "error", "pre"), ("mukhoti", "F.6", "error", "pre")),
    "ECE": (
        ("mukhoti", "T1", "ECE", "pre"),
        ("mukhoti", "F.3", "ECE", "pre"),
        ("bsce-gra", "main", "ECE", "pre"),
    ),
    "ECE after T": (
        ("mukhoti", "T1", "ECE", "post"),
        ("mukhoti", "F.3", "ECE", "post"),
        ("bsce-gra", "main", "ECE", "post"),
    ),
    "AdaECE": (
        ("mukhoti", "F.1", "AdaECE", "pre"),
        ("mukhoti", "F.4", "AdaECE", "pre"),
        ("adafocal", "Table 1", "ECE_EM", "pre"),
    ),
    "NLL": (("mukhoti", "F.8", "NLL", "pre"),),
}
# Methods under the names of this page, where another source has another one.
OTHER_NAMES = {"Cross-Entropy": "CE", "Dual focal": "DFL"}


Column = Callable[[Trained], float | None]


def _error(predictions: Predictions | Columns) -> float:
    return 100 * estimates.error(predictions).value


def _ece(predictions: Predictions | Columns) -> float:
    return 100 * estimates.ece(predictions)


def _of_logits(statistic: Callable[[Trained], float]) -> Column:
    """Return the column of a statistic that needs logits."""
    return lambda run: None if isinstance(run.test, Columns) else statistic(run)


LABELS: dict[str, Column] = {  # of a network with one label an example
    "error": lambda run: _error(run.test),
    "ECE": lambda run: _ece(run.test),
    "ECE after T": _of_logits(lambda run: _ece(run.scaled)),
    "T": _of_logits(lambda run: run.temperature),
    "AdaECE": _of_logits(lambda run: 100 * float(metrics.adaptive_ece(*run.logits))),
    "NLL": _of_logits(lambda run: 100 * estimates.nll(run.logits).value),
}


def _percent(statistic: Callable[[Trained], float]) -> Column:
    return lambda run: 100 * statistic(run)


POLAR: dict[str, Column] = {
    "error": lambda run: _error(texts.released_before(run)),
    "ECE": lambda run: _ece(texts.released_before(run)),
    "ECE after T": lambda run: _ece(texts.released_after(run)),
    "T": texts.released_temperature,
    "AdaECE": _percent(texts.released_adaptive_ece),
    "ECE, divided": lambda run: _ece(texts.polar_before(run)),
    "ECE after T, divided": lambda run: _ece(texts.polar_after(run)),
    "T, divided": texts.polar_temperature,
    "NLL, divided": _percent(lambda run: estimates.nll(texts.polar_before(run)).value),
}


def _of_pixels(statistic: Callable[[Mapping[str, np.ndarray]], float]) -> Column:
    """Return the column of a statistic of the confusion of all test images."""
    measure = recall.MEASURE
    return lambda run: 100 * statistic({"confusion": run.measured[measure]["confusion"].sum(0)})


def _rare_recall(run: Trained) -> float:
    arrays = run.measured[recall.MEASURE]
    statistic = recall.rare_recall(arrays["class_counts"])
    return 100 * statistic({"confusion": arrays["confusion"].sum(0)})


PIXELS: dict[str, Column] = {
    "mean recall": _of_pixels(recall.mean_recall),
    "recall of the 3 rarest": _rare_recall,
    "mean precision": _of_pixels(recall.mean_precision),
    "mIoU": _of_pixels(recall.mean_iou),
    "ECE": _percent(lambda run: comparisons.ece_of_images(run, recall.MEASURE, "before")),
    "ECE after T": _percent(lambda run: comparisons.ece_of_images(run, recall.MEASURE, "after")),
    "T": lambda run: float(run.measured[recall.MEASURE]["temperature"]),
}


@dataclasses.dataclass(frozen=True)
class TrainedTable:
    """A table: trainings of one network by method.

    Attributes:
      title: the network and the data.
      rows: trainings by method.
      larger: the data set and the network of each source, whose numbers stand beside.
      columns: functions of a trained network.
      measures: further measurements that the columns need.
      note: what differs from the sources.
    """

    title: str
    rows: Mapping[str, Training]
    larger: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    columns: Mapping[str, Column] = dataclasses.field(default_factory=lambda: LABELS)
    measures: tuple[str, ...] = ()
    note: str = ""


def _text_rows(of: Callable[..., Training]) -> dict[str, Training]:
    rows = {"Cross-Entropy": of("cross_entropy")}
    rows |= {f"FL-{gamma}": of("focal", gamma=float(gamma)) for gamma in (1, 2, 3)}
    rows |= {
        f"{kind}-{number}": of(f"{kind.lower()}{number}")
        for kind, number in (("FLSc", 531), ("FLSc", 532), ("FLSD", 53), ("FLSD", 532))
    }
    named = {"Brier Loss": "brier", "MMCE": "mmce", "LS-0.05": "label_smoothing"}
    named |= {"AdaFocal": "adafocal", "Dual focal": "dual_focal", "BSCE-GRA": "bsce_gra"}
    return rows | {method: of(loss) for method, loss in named.items()}


def _tail(loss: str) -> Training:
    return Training(loss, config=recall.TAIL)


def _scenes(loss: str, **options: object) -> Training:
    return Training(loss, options, config=recall.SCENES, keep="none")


TABLES = (
    TrainedTable(
        "ResNet-8 on 10,000 images of CIFAR-10",
        {
            "Cross-Entropy": trainings.CE,
            "FL-1": trainings.FL1,
            "FL-2": trainings.FL2,
            "FL-3": trainings.FL3,
            "FL-4": trainings.FL4,
            "FL-5": trainings.FL5,
            "FLSD-53": trainings.FLSD53,
            "Brier Loss": trainings.BRIER,
            "MMCE": trainings.MMCE,
            "LS-0.05": trainings.LABEL_SMOOTHING,
            "LS-0.1": trainings.LABEL_SMOOTHING_01,
            "AdaFocal": trainings.ADAFOCAL,
            "Dual focal": trainings.DUAL_FOCAL,
            "BSCE": trainings.BSCE,
            "FL-GRA": trainings.FL_GRA,
            "DFL-GRA": trainings.DFL_GRA,
            "BSCE-GRA": trainings.BSCE_GRA,
        },
        {
            "mukhoti": ("CIFAR-10", "ResNet-50"),
            "adafocal": ("CIFAR-10", "ResNet50"),
            "bsce-gra": ("CIFAR10", "ResNet50"),
        },
        note="40 epochs without augmentation, so errors are larger than those of ResNet-50 on all"
        " 45,000 images. MMCE is the loss `mmce`; the scripts released with Mukhoti et al. train"
        " `mmce_weighted`.",
    ),
    TrainedTable(
        "Global pooling CNN on 20 Newsgroups",
        _text_rows(newsgroups_cnn)
        | {
            "Cross-Entropy, words learned": newsgroups_learned("cross_entropy"),
            "FL-3, words learned": newsgroups_learned("focal", gamma=3.0),
            "FLSD-53, words learned": newsgroups_learned("flsd53"),
        },
        {"mukhoti": ("20 Newsgroups", "Global Pooling CNN"), "adafocal": ("20Newsgroup", "CNN")},
        note="The by-date version, 250 words a message and 22 epochs in place of 1,000 and 50, the"
        " word vectors of MiniLM in place of GloVe, also fixed, the epoch of the best validation"
        " accuracy.",
    ),
    TrainedTable(
        "MiniLM on 20 Newsgroups",
        {
            "Cross-Entropy": newsgroups_bert("cross_entropy"),
            "FLSD-53": newsgroups_bert("flsd53"),
            "AdaFocal": newsgroups_bert("adafocal"),
        },
        {"adafocal": ("20Newsgroup", "BERT")},
        note="A BERT of 6 layers of width 384, 128 word pieces a message, two epochs, one seed.",
    ),
    TrainedTable(
        "Tree-LSTM on the binary SST",
        _text_rows(sst)
        | {
            "FLSD-53, threshold 0.19": sst("flsd53_text"),
            "Cross-Entropy, words learned": sst_learned("cross_entropy"),
            "FL-3, words learned": sst_learned("focal", gamma=3.0),
            "FLSD-53, words learned": sst_learned("flsd53"),
            "AdaFocal, words learned": sst_learned("adafocal"),
        },
        {"mukhoti": ("SST Binary", "Tree-LSTM")},
        POLAR,
        note="Word vectors of MiniLM in place of GloVe, the epoch of the best validation accuracy."
        " As in the released code, the probability of neutral goes to no class; 'divided' are the"
        " values of probabilities that are divided by their sum.",
    ),
    TrainedTable(
        "ResNet-8 on CIFAR-10-LT",
        {
            "Cross-Entropy": _tail("cross_entropy"),
            "Recall": _tail("recall"),
            "FL-3": _tail("focal"),
            "Logit adjustment": _tail("logit_adjusted"),
        },
        columns={
            **LABELS,
            "recall of the 3 rarest": lambda run: 100 * recall.recall_of(-3)(run.logits).value,
        },
        note="Long-tailed by a factor of 100; the test set has equal classes.",
    ),
    TrainedTable(
        "DeepLab of .6 million parameters on CamVid, 160 x 120",
        {
            "Cross-Entropy": _scenes("cross_entropy"),
            "Recall": _scenes("recall"),
            "Recall, alpha 0.1": _scenes("recall", alpha=0.1),
            "Weighted by medians": _scenes("class_weighted", balancing="median"),
            "FL-1": _scenes("focal", gamma=1.0),
            "FL-GRA": _scenes("fl_gra"),
            "BSCE-GRA": _scenes("bsce_gra"),
        },
        columns=PIXELS,
        measures=(recall.MEASURE,),
        note="Void pixels are left out.",
    ),
)


def collect(
    folder: pathlib.Path, runs_dir: pathlib.Path, data_dir: str | None
) -> dict[Training, list[str]]:
    """Write the missing records of finished runs; return the missing seeds of every training."""
    missing: dict[Training, list[str]] = {}
    for table in TABLES:
        wanted = Entry(claims={}, statistic={}, runs=table.rows, measures=table.measures)
        missing |= records.collect(folder, wanted, runs_dir, data_dir)
    return missing


def text(folder: pathlib.Path) -> str:
    """Format the page from the records."""
    parts = [HEAD]
    for table in TABLES:
        rows = [["method", "seeds", *table.columns]]
        sizes = set()
        for method, training in table.rows.items():
            if found := _found(folder, table, training):
                rows.append([method, str(len(found)), *_cells(table, method, found)])
                sizes |= {_size(run) for run in found}
        if sizes:
            listed = " and ".join(f"{size:,}" for size in sorted(sizes))
            parts += [f"## {table.title}", f"{listed} test examples. {table.note}"]
            parts.append(tables.in_markdown(rows))
        if table.columns is PIXELS:
            parts += _beside_cross_entropy(folder, table)
    made = provenance.published()
    parts.append(
        f"Computed at commit {made['commit']}, {made['date'][:10]}, JAX {made['versions']['jax']}."
        " Each run's own commit, machine and versions are in its record."
    )
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _beside_cross_entropy(folder: pathlib.Path, table: TrainedTable) -> list[str]:
    """Compare all losses of a table of pixels with its first, over seeds and images."""
    found = {method: _found(folder, table, run) for method, run in table.rows.items()}
    baseline, *others = found
    changes = {
        method: recall.scene_changes(found[method], found[baseline])
        for method in others
        if 1 < len(found[method]) == len(found[baseline])
    }
    if not changes:
        return []
    names = next(iter(changes.values()))
    rows = [["method", *names]] + [
        [method, *map(Value.percent, values.values())] for method, values in changes.items()
    ]
    return [
        f"The same, minus {baseline}, with 90 % intervals over seeds and test images, whose pixels"
        " depend on each other. CE2 is the debiased squared calibration error of the pixels, here"
        " also times 100.",
        tables.in_markdown(rows),
    ]


def _found(folder: pathlib.Path, table: TrainedTable, training: Training) -> list[Trained]:
    """Read the records of all seeds that are there, with their measurements."""
    return [
        records.read(folder, training, seed, table.measures)
        for seed in training.of_seeds
        if all(
            records.path_of(folder, training, seed, name).is_file()
            for name in ("", *table.measures)
        )
    ]


def _size(run: Trained) -> int:
    """Return the number of test examples, or of images where their pixels are summed."""
    measured = run.measured.get(recall.MEASURE)
    return len(run.test.right if measured is None else measured["confusion"])


def _cells(table: TrainedTable, method: str, runs: Sequence[Trained]) -> list[str]:
    cells = []
    for name, column in table.columns.items():
        known = [value for value in map(column, runs) if value is not None]
        number = published_number(table, method, "ECE after T" if name == "T" else name)
        beside = number and (number.temperature if name == "T" else number.value)
        cells.append(_cell(known, 2 if name.startswith("T") else 1, beside))
    return cells


def _cell(values: Sequence[float], digits: int, beside: float | None) -> str:
    """Format values and the published one.

    >>> _cell([1.0, 3.0], 1, 2.5), _cell([1.0], 2, None), _cell([], 1, 2.5)
    ('2.0 ± 1.4 (2.5)', '1.00', '')
    """
    if not values:
        return ""
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}" + (f" ({beside:g})" if beside else "")


def published_number(table: TrainedTable, method: str, column: str) -> published.Number | None:
    """Find the published number of a method; None if no source prints it."""
    for source, name, metric, phase in PLACES.get(column, ()):
        for known in (method, OTHER_NAMES.get(method, method)):
            if source in table.larger:
                key = published.Key(source, name, *table.larger[source], known, metric, phase)
                if key in published.read():
                    return published.read()[key]
    return None
