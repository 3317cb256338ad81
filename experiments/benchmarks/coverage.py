"""Measure how often intervals contain the truth and how often tests reject, on simulated data.

    python -m experiments.benchmarks.coverage --cells=coverage.json --page=coverage.md
    python -m experiments.benchmarks.coverage --sets=20 --parts=bounds,tests --examples=200

A cell is one question at one number of examples, of classes and one kind of model. Finished cells
are added to the file of `--cells`, and a cell that has enough sets there is not measured again, so
an interrupted run continues where it ended. The page is written from all cells.

A nominal 90 % interval should contain the truth in 90 % of the sets or more, and a test at 5 %
should reject at most 5 % of true hypotheses. Values that miss this by more than three standard
errors are bold.
"""

import collections
import concurrent.futures
import functools
import inspect
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import tqdm

from calib_jax import inference, metrics
from calib_jax.train.folder import files
from experiments.benchmarks import reference, simulations, tables
from experiments.running import cli, provenance

LEVEL, SIZE = 0.9, 0.05
ROUNDING = 1e-6  # wider than intervals of float32 values that differ by rounding alone
TEMPERATURES = {f"T = {temperature:g}": temperature for temperature in (1.0, 1.15, 1.5)}
RARE = {  # confidence and accuracy
    f"confidence {confidence:g}, accuracy {accuracy:g}": (confidence, accuracy)
    for confidence, accuracy in ((0.99, 0.999), (0.95, 0.998), (0.95, 0.99), (0.999, 0.99))
}
GAPS = {f"gap {gap:g}": gap for gap in (0.0, 0.01, 0.03)}


class Outcome(NamedTuple):
    """The result of one function on one data set; fields that it does not return are NaN."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    truth: float = math.nan


Outcomes = dict[str, Outcome]
Data = Any  # a tuple of logits and labels, or of the logits of two models and labels


def _outcome(result: Any) -> Outcome:
    """Take the fields of a result of calibration inference."""
    value, low, high = map(float, (result.value, result.low, result.high))
    p_value = getattr(result, "p_value", None)
    return Outcome(value, low, high, math.nan if p_value is None else float(p_value))


class Question(NamedTuple):
    """One measurement: its models, its methods and the sizes for which it runs.

    Attributes:
      title: the title of its tables.
      note: the text above the tables.
      cases: kinds of models, by name, with the last argument of `draw` and `truth`.
      null: the cases in which the tested hypothesis is true.
      draw: `(key, rows, classes, dependent, case) -> Data`.
      methods: `(data, key, draws, clusters) -> Outcomes` without truth; `clusters` holds the option
        of this name for dependent examples.
      truth: `(name, classes, case, data) -> the true value`; NaN for tests.
      dependent: whether examples form clusters; the methods then run with clusters and without.
      share: a share of the sets, for questions that need few or are expensive.
      is_costly: whether the cost of a set grows with its logits.
      fewest: the fewest examples.
      most: the most examples.
    """

    title: str
    note: str
    cases: Mapping[str, Any]
    null: Sequence[str]
    draw: Callable[[jax.Array, int, int, bool, Any], Data]
    methods: Callable[[Data, jax.Array, int, dict[str, Any]], Outcomes]
    truth: Callable[[str, int, Any, Data], float] = lambda *_: math.nan
    dependent: bool = False
    share: float = 1.0
    is_costly: bool = False
    fewest: int = 0
    most: int = 10**9

    def measure(self, key: jax.Array, rows: int, classes: int, name: str, draws: int) -> Outcomes:
        """Draw one data set, and apply the methods."""
        case, (data_key, key) = self.cases[name], jax.random.split(key)
        data = self.draw(data_key, rows, classes, self.dependent, case)
        clusterings: dict[str, dict[str, Any]] = {"": {}}
        if self.dependent:
            clusters = {"clusters": simulations.clusters_of(rows)}
            clusterings = {"": clusters, ", clusters ignored": {}}
        return {
            method + suffix: outcome._replace(truth=self.truth(method, classes, case, data))
            for suffix, clusters in clusterings.items()
            for method, outcome in self.methods(data, key, draws, clusters).items()
        }

    def sets(self, sets: int, rows: int, classes: int) -> int:
        """Return the number of data sets at one size, at least 2."""
        affordable = min(1.0, max(0.1, 1e5 / (rows * classes))) if self.is_costly else 1.0
        return max(2, round(sets * self.share * affordable))


# --------------------------------------------------------------------------------------------
# One model.

TOP_LABEL = {name: metrics.named(name) for name in ("ece", "adaptive_ece", "mce")}
BOOTSTRAPPED = {
    name: metrics.named(name)
    for name in (
        *("ece", "adaptive_ece", "accuracy", "nll", "brier", "aurc", "augrc"),
        *("risk_at_coverage", "coverage_at_risk", "expected_cost"),
    )
}
OF_ALL_PAIRS = ("skce",)  # tests that compare all pairs of examples
INDEPENDENT = ("t_cal", *OF_ALL_PAIRS)  # tests that take no clusters


def of_scaled_logits(name: str, classes: int, temperature: float, data: Data) -> float:
    """Return the true value of a metric; the MCE is over the bins that contain examples."""
    truth = simulations.truth(classes, temperature)
    if name != "mce":
        return truth.values[name]
    p = reference.softmax(np.asarray(data[0], np.float64))
    return float(np.max(np.abs(truth.bin_gaps[np.unique(reference.bins(p.max(axis=1)))])))


def of_one_bin(name: str, classes: int, gap: Any, data: Data) -> float:
    """Return the true error of a model whose examples lie in one bin: the gap, or its square."""
    gap = abs(gap[0] - gap[1]) if isinstance(gap, tuple) else gap
    return gap**2 if name == "squared_error" else gap


def confident(key: jax.Array, rows: int, classes: int, _: bool, gap: float) -> Data:
    """Draw a model with high confidences, all in one bin."""
    return simulations.confident(key, rows, classes, gap)


def of_rare_errors(key: jax.Array, rows: int, classes: int, _: bool, case: Any) -> Data:
    """Draw a model with one confidence, whose errors or whose hits are rare."""
    return simulations.constant(key, rows, classes, *case)


def bounds(data: Data, key: jax.Array, draws: int, clusters: dict[str, Any]) -> Outcomes:
    """Compute noise bounds of binned errors, and the interval of the squared error."""
    options: dict[str, Any] = {"level": LEVEL, **clusters}
    by_name = inference.noise_bound(TOP_LABEL, *data, key=key, num_resamples=draws, **options)
    error = inference.debiased_squared_error(*data, **options)
    squared = _outcome(error)._replace(p_value=math.nan)  # a test of its own, see `by_test`
    return {**{name: _outcome(bound) for name, bound in by_name.items()}, "squared_error": squared}


def classwise(data: Data, key: jax.Array, draws: int, _: dict[str, Any]) -> Outcomes:
    """Compute the noise bound of the classwise ECE."""
    options: dict[str, Any] = {"key": key, "level": LEVEL, "num_resamples": draws}
    return {
        "classwise_ece": _outcome(inference.noise_bound(metrics.classwise_ece, *data, **options))
    }


def bootstrapped(data: Data, key: jax.Array, draws: int, _: dict[str, Any]) -> Outcomes:
    """Compute percentile intervals of binned errors, for which they fail, and of means."""
    several = inference.estimates(
        BOOTSTRAPPED, *data, key=key, level=LEVEL, method="percentile", num_resamples=draws
    )
    return {name: _outcome(estimate) for name, estimate in several.items()}


def by_test(
    data: Data, key: jax.Array, draws: int, clusters: dict[str, Any], *, all_pairs: bool = False
) -> Outcomes:
    """Compute p-values by test name; the noise bounds have the p-values of binned errors."""
    by_name = {}
    for name, test in inference.calibration_tests().items():
        taken = inspect.signature(test).parameters
        if name in metrics.catalogue() or (name in OF_ALL_PAIRS) != all_pairs:
            continue
        given = {"key": key, "num_resamples": draws}
        options: dict[str, Any] = {option: given[option] for option in given if option in taken}
        if not clusters or name not in INDEPENDENT:
            result = inference.calibration_test(name, *data, **(clusters | options))
            by_name[name] = Outcome(p_value=result.p_value)
    return by_name


# --------------------------------------------------------------------------------------------
# Two models.

SHARPER, EQUAL = "both calibrated, B sharper", "equal errors"
# Without a temperature, the true errors of both models are equal.
PAIRS: dict[str, Any] = {
    SHARPER: simulations.sharper,
    EQUAL: simulations.equal_errors,
    "A calibrated, B T = 1.15": 1.15,
    "A calibrated, B T = 1.5": 1.5,
}


def two_models(key: jax.Array, rows: int, classes: int, dependent: bool, case: Any) -> Data:
    """Draw the logits of two models, and labels."""
    if callable(case):
        return case(key, rows, classes, dependent)
    return simulations.less_calibrated(key, rows, classes, dependent, case)


def of_difference(name: str, classes: int, case: Any, data: Data) -> float:
    """Return the true change from A to B."""
    if name == "calibration part of the NLL":  # only tested
        return math.nan
    if callable(case):
        return 0.0
    return math.log(case) if name == "log T" else simulations.truth(classes, case).values[name]


def pairs(data: Data, key: jax.Array, draws: int, clusters: dict[str, Any]) -> Outcomes:
    """Compare the squared errors, the ECEs, the temperatures and the NLLs of two models."""
    options: dict[str, Any] = {"level": LEVEL, **clusters}
    ece = inference.compare_ece(*data, key=key, num_resamples=draws, **options)
    refinement = inference.compare_refinement(*data, **options)
    return {
        "squared_error": _outcome(inference.compare_calibration(*data, **options)),
        "ece": _outcome(ece),
        "log T": _outcome(inference.compare_temperature(*data, **options)),
        "calibration part of the NLL": Outcome(p_value=refinement.calibration.p_value),
    }


def paired_bootstrap(data: Data, key: jax.Array, draws: int, _: dict[str, Any]) -> Outcomes:
    """Compute the p-value of the resampled difference of two ECEs, which is not valid."""
    change = inference.paired_bootstrap(
        metrics.ece, *data, key=key, level=LEVEL, num_resamples=draws
    )
    return {"ece": Outcome(*map(float, change[:4]))}


# --------------------------------------------------------------------------------------------
# The questions.

T1 = ("T = 1",)
ONE, TWO = simulations.one_model, two_models
DEPENDENT: dict[str, Any] = {"dependent": True, "fewest": 600}
TWO_TEMPERATURES = {name: TEMPERATURES[name] for name in ("T = 1", "T = 1.5")}
NULL_PAIRS = {name: PAIRS[name] for name in (SHARPER, EQUAL)}
QUESTIONS = {
    "bounds": Question(
        "Intervals and tests of binned errors",
        "`inference.noise_bound` of three metrics, and `inference.debiased_squared_error`. At T = 1"
        " the model is calibrated and its true error is 0.",
        *(TEMPERATURES, T1, ONE, bounds, of_scaled_logits),
    ),
    "confident": Question(
        "Intervals and tests of binned errors of confident models",
        f"The same for models with confidences of {simulations.LEAST:g} to {simulations.MOST:g},"
        " all in one of 15 bins, that are right less often by the gap. The gap is their true error,"
        " and its square the true squared error.",
        *(GAPS, ("gap 0",), confident, bounds, of_one_bin),
        share=0.5,
    ),
    "rare_errors": Question(
        "Intervals of binned errors of accurate models, whose errors are rare",
        "The same for models with one confidence. Most of them are under-confident: of 200 examples"
        " often none is wrong, and the variance of what was observed is then 0.",
        *(RARE, (), of_rare_errors, bounds, of_one_bin),
    ),
    "classwise": Question(
        "Intervals and tests of the classwise error",
        "`inference.noise_bound` of `classwise_ece`.",
        *(TEMPERATURES, T1, ONE, classwise, of_scaled_logits),
        is_costly=True,
    ),
    "bootstrap": Question(
        "Intervals of the bootstrap",
        "Percentile intervals: they hold for means, the AURC, the AUGRC and the risk at a coverage."
        " They fail for binned errors and for `coverage_at_risk`, the largest of many coverages.",
        *(TEMPERATURES, T1, ONE, bootstrapped, of_scaled_logits),
        share=0.25,
    ),
    "tests": Question(
        "Tests of calibration",
        "`inference.calibration_test(name, ...)`. At T = 1 the hypothesis is true; the other"
        " columns show power.",
        *(TEMPERATURES, T1, ONE, by_test),
    ),
    "all_pairs": Question(
        "Tests of calibration that compare all pairs of examples",
        "They cost the square of the number of examples, so they are measured up to 1,000.",
        *(TEMPERATURES, T1, ONE, functools.partial(by_test, all_pairs=True)),
        share=0.1,
        most=1000,
    ),
    "pairs": Question(
        "Is one of two models better calibrated?",
        "`inference.compare_calibration` of squared errors, `compare_ece`, `compare_temperature`"
        " and `compare_refinement`. The hypothesis is true in the first two kinds of pairs. In"
        " the others the logits of B are those of A times T, so the change of log T is exact.",
        *(PAIRS, tuple(NULL_PAIRS), TWO, pairs, of_difference),
        is_costly=True,
    ),
    "paired_bootstrap": Question(
        "The bootstrap of a difference, which is not a test of calibration",
        "`inference.paired_bootstrap` of the ECE rejects because sharpness changes the bias.",
        *(NULL_PAIRS, tuple(NULL_PAIRS), TWO, paired_bootstrap),
        share=0.1,
    ),
    "clusters": Question(
        "Dependent examples, one model",
        f"Clusters of {simulations.CLUSTER_SIZE} examples with a correlation of"
        f" {simulations.CORRELATION}; with `clusters=` and without.",
        *(TWO_TEMPERATURES, T1, ONE, bounds, of_scaled_logits),
        share=0.25,
        **DEPENDENT,
    ),
    "clustered_tests": Question(
        "Dependent examples, tests of calibration",
        "The same clusters, with `inference.calibration_test`.",
        *(TWO_TEMPERATURES, T1, ONE, by_test),
        share=0.25,
        **DEPENDENT,
    ),
    "clustered_pairs": Question(
        "Dependent examples, two models",
        "The same clusters, with the comparisons of two models.",
        {**NULL_PAIRS, "A calibrated, B T = 1.5": 1.5},
        *(tuple(NULL_PAIRS), TWO, pairs, of_difference),
        share=0.25,
        is_costly=True,
        **DEPENDENT,
    ),
}


# --------------------------------------------------------------------------------------------
# Cells.


class Cell(NamedTuple):
    """One question at one setting, and the number of data sets."""

    part: str
    examples: int
    classes: int
    case: str
    sets: int

    @property
    def place(self) -> tuple[Any, ...]:
        """The cell without its number of sets."""
        return self[:4]


def measured(cell: Cell, draws: int) -> tables.Row:
    """Simulate the data sets of a cell, and summarise every method."""
    question, started = QUESTIONS[cell.part], time.process_time()
    outcomes: dict[str, list[Outcome]] = {}
    for number in range(cell.sets):
        key = jax.random.fold_in(jax.random.key(0), number)
        by_name = question.measure(key, cell.examples, cell.classes, cell.case, draws)
        for name, outcome in by_name.items():
            outcomes.setdefault(name, []).append(outcome)
    methods = {name: _summary(list_of) for name, list_of in outcomes.items()}
    seconds = round(time.process_time() - started, 1)
    return cell._asdict() | {"draws": draws, "cpu_seconds": seconds, "methods": methods}


def _summary(outcomes: Sequence[Outcome]) -> tables.Row:
    """Compute shares over the sets; None where no set has the field."""
    value, low, high, p_value, truth = (np.array(part) for part in zip(*outcomes, strict=True))
    bounded = np.isfinite(low) & np.isfinite(high) & np.isfinite(truth)
    tested = np.isfinite(p_value)
    slack = 1e-9  # the true error of a calibrated model is 0 up to rounding

    def mean(values: np.ndarray, counted: np.ndarray) -> float | None:
        return float(np.mean(values[counted])) if np.any(counted) else None

    return {
        "truth": mean(truth, np.isfinite(truth)),
        "value": mean(value, np.isfinite(value)),
        "coverage": mean((low <= truth + slack) & (truth - slack <= high), bounded),
        "width": mean(high - low, bounded),
        "rejected": mean(p_value <= SIZE, tested),
        "contains_value": mean((low <= np.maximum(value, 0)) & (value <= high), bounded),
        "intervals": int(np.sum(bounded)),
        "p_values": int(np.sum(tested)),
    }


def cells_of(
    sets: int, parts: Sequence[str], examples: Sequence[int], classes: Sequence[int]
) -> list[Cell]:
    """List the cells of the chosen parts, small ones first."""
    return [
        Cell(part, n, k, case, QUESTIONS[part].sets(sets, n, k))
        for n in examples
        for part in parts
        if QUESTIONS[part].fewest <= n <= QUESTIONS[part].most
        for k in classes
        for case in QUESTIONS[part].cases
    ]


Finished = dict[tuple[Any, ...], tables.Row]  # rows by the place of their cell


def _read(path: str) -> Finished:
    """Read the finished cells of a file; none without a file."""
    if not path or not pathlib.Path(path).exists():
        return {}
    content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    if "cells" not in content:
        raise cli.Refused(f"--cells={path} has no finished cells. Name a new file.")
    return {tuple(row[field] for field in Cell._fields[:4]): row for row in content["cells"]}


def _add(cell: Cell, row: tables.Row, finished: Finished, path: str) -> None:
    """Add a finished cell in place of one with fewer sets, and replace the file atomically."""
    origin = provenance.published()
    finished[cell.place] = row | {"commit": origin["commit"]}
    if path:
        content = {"provenance": origin, "cells": list(finished.values())}
        files.replace(pathlib.Path(path), json.dumps(content, indent=1) + "\n")


def _origin(finished: Finished, path: str) -> str:
    """Describe the file and the commits of its cells."""
    commits = collections.Counter(row["commit"] for row in finished.values())
    counted = ", ".join(f"{number} at commit {commit}" for commit, number in commits.items())
    return f"{pathlib.Path(path).name}, measured {counted}" if path else "in memory"


def pool_of(processes: int) -> concurrent.futures.ProcessPoolExecutor:
    """Return a pool whose workers end with the parent process, even if it is killed."""
    return concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_watch_parent
    )


def _watch_parent() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process has ended, then exit at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _measure_all(
    cells: Sequence[Cell], draws: int, processes: int, add: Callable[[Cell, tables.Row], None]
) -> None:
    progress = functools.partial(tqdm.tqdm, total=len(cells), leave=False, disable=None)
    if processes == 1:
        for cell in progress(cells):
            add(cell, measured(cell, draws))
        return
    with pool_of(processes) as pool:
        waiting = {pool.submit(measured, cell, draws): cell for cell in cells}
        try:
            for done in progress(concurrent.futures.as_completed(waiting)):
                add(waiting[done], done.result())
        finally:
            pool.shutdown(cancel_futures=True)


# --------------------------------------------------------------------------------------------
# The page.


def _bold(text: str, failed: bool) -> str:
    return f"**{text}**" if failed else text


def _three_errors(share: float, count: int) -> float:
    return 3 * math.sqrt(share * (1 - share) / count)


def _interval(method: str, case: str, row: tables.Row) -> str:
    """Format coverage and mean width; an interval as short as rounding errors has no coverage."""
    measurement = row["by_case"].get(case, {}).get(method)
    if not measurement or measurement["coverage"] is None:
        return ""
    if measurement["width"] < ROUNDING:
        return "exact"
    failed = measurement["coverage"] < LEVEL - _three_errors(LEVEL, measurement["intervals"])
    return _bold(f"{measurement['coverage']:.1%}", failed) + f" ({measurement['width']:.3f})"


def _rejections(method: str, case: str, null: bool, row: tables.Row) -> str:
    """Format the share of rejections."""
    measurement = row["by_case"].get(case, {}).get(method)
    if not measurement or measurement["rejected"] is None:
        return ""
    limit = SIZE + _three_errors(SIZE, measurement["p_values"])
    return _bold(f"{measurement['rejected']:.1%}", null and measurement["rejected"] > limit)


def _tables_of(rows: Sequence[tables.Row]) -> tuple[list[tables.Row], dict[str, tables.Section]]:
    """Build one row for each part, method and setting, with a column for each case."""
    pivoted: list[tables.Row] = []
    sections: dict[str, tables.Section] = {}
    for part, question in QUESTIONS.items():
        of_part = [row for row in rows if row["part"] == part]
        methods = list(dict.fromkeys(method for row in of_part for method in row["methods"]))
        settings = sorted({(row["examples"], row["classes"]) for row in of_part})
        for kind in ("coverage", "rejected"):
            for method in methods:
                for examples, classes in settings:
                    by_case = {
                        row["case"]: row["methods"]
                        for row in of_part
                        if (row["examples"], row["classes"]) == (examples, classes)
                    }
                    if not any(
                        each.get(method, {}).get(kind) is not None for each in by_case.values()
                    ):
                        continue
                    setting = {"examples": examples, "classes": classes, "method": method}
                    pivoted.append({"task": f"{part} {kind}", "by_case": by_case} | setting)
            words = "coverage (mean width)" if kind == "coverage" else f"rejected at {SIZE:.0%}"
            columns = {name: tables.text(name) for name in ("method", "examples", "classes")}
            columns |= {
                case: _cell_of(kind, case, case in question.null) for case in question.cases
            }
            sections[f"{part} {kind}"] = tables.Section(
                f"{question.title}: {words}", columns, question.note
            )
    return pivoted, sections


def _cell_of(kind: str, case: str, null: bool) -> tables.Cell:
    if kind == "coverage":
        return lambda row: _interval(row["method"], case, row)
    return lambda row: _rejections(row["method"], case, null, row)


def _span(numbers: Sequence[int]) -> str:
    return f"{min(numbers):,} to {max(numbers):,}"


def main(
    sets: Annotated[int, "Data sets where one is cheap; expensive ones get a share."] = 2000,
    parts: Annotated[Sequence[str], f"All, or some of {', '.join(QUESTIONS)}."] = (),
    examples: Annotated[Sequence[str], "Examples of a set, one or more."] = (
        "200",
        "1000",
        "10000",
    ),
    classes: Annotated[Sequence[str], "Classes, one or more."] = ("2", "10", "100"),
    draws: Annotated[int, "Draws and resamples of each set."] = 199,
    processes: Annotated[int, "Cells that are measured at a time."] = 2,
    cells: Annotated[str, "JSON file of finished cells, to which new ones are added."] = "",
) -> tables.Report:
    """Measure the cells that are missing, and tabulate all."""
    tables.check("parts", parts, QUESTIONS)
    for flag, values in (("examples", examples), ("classes", classes)):
        for value in values:
            if not value.isdigit() or int(value) < 2:
                raise cli.Refused(f"--{flag} must be whole numbers of at least 2, got {value!r}.")
    chosen = cells_of(
        sets, parts or tuple(QUESTIONS), *(list(map(int, v)) for v in (examples, classes))
    )
    finished = _read(cells)
    missing = [
        cell
        for cell in chosen
        if cell.place not in finished or finished[cell.place]["sets"] < cell.sets
    ]
    add = functools.partial(_add, finished=finished, path=cells)
    _measure_all(missing, draws, processes, add)
    rows = list(finished.values())
    pivoted, sections = _tables_of(rows)
    setting = {
        "cells": _origin(finished, cells),
        "sets": _span([row["sets"] for row in rows]),
        "examples": _span([row["examples"] for row in rows]),
        "nominal coverage": LEVEL,
        "size of tests": SIZE,
    }
    return tables.Report("Coverage and size", pivoted, sections, setting=setting)


if __name__ == "__main__":
    tables.run(main)
