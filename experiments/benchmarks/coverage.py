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
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import tqdm

from calib_jax import inference, metrics
from calib_jax.core.files import writing
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


def _outcome(result: Any, truth: float = math.nan) -> Outcome:
    """Take the fields of a result of calibration inference."""
    p_value = getattr(result, "p_value", None)
    value, low, high = map(float, (result.value, result.low, result.high))
    return Outcome(value, low, high, math.nan if p_value is None else float(p_value), truth)


class Question(NamedTuple):
    """One measurement: its models, its function and the sizes for which it runs.

    Attributes:
      title: the title of its tables.
      note: the text above the tables.
      cases: kinds of models, by name.
      null: the cases in which the tested hypothesis is true.
      measure: `(key, rows, classes, case, draws) -> Outcomes`, for one data set.
      share: `(rows, classes) -> share of the sets`, less where a set is expensive.
      fewest: the fewest examples.
      most: the most examples.
    """

    title: str
    note: str
    cases: Sequence[str]
    null: Sequence[str]
    measure: Callable[[jax.Array, int, int, str, int], Outcomes]
    share: Callable[[int, int], float]
    fewest: int = 0
    most: int = 10**9


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


def _truth_of(name: str, classes: int, temperature: float, logits: Any) -> float:
    """Return the true value; the MCE is over the bins that contain examples."""
    truth = simulations.truth(classes, temperature)
    if name != "mce":
        return truth.values[name]
    p = reference.softmax(np.asarray(logits, np.float64))
    return float(np.max(np.abs(truth.bin_gaps[np.unique(reference.bins(p.max(axis=1)))])))


def bounds(
    key: jax.Array, rows: int, classes: int, case: str, draws: int, dependent: bool = False
) -> Outcomes:
    """Compute noise bounds of binned errors, and the interval of the squared error."""
    temperature, (data_key, key) = TEMPERATURES[case], jax.random.split(key)
    data = simulations.one_model(data_key, rows, classes, dependent, temperature)
    true = functools.partial(_truth_of, classes=classes, temperature=temperature, logits=data[0])
    return _bounds_of(data, key, draws, _clusterings(rows, dependent), true)


def of_confident(key: jax.Array, rows: int, classes: int, case: str, draws: int) -> Outcomes:
    """Compute the outcomes of a model whose examples lie in one bin."""
    data_key, key = jax.random.split(key)
    gap = GAPS[case]
    return _of_one_bin(simulations.confident(data_key, rows, classes, gap), key, draws, gap)


def of_rare_errors(key: jax.Array, rows: int, classes: int, case: str, draws: int) -> Outcomes:
    """Compute the outcomes of a model with one confidence, whose errors or whose hits are rare."""
    data_key, key = jax.random.split(key)
    confidence, accuracy = RARE[case]
    data = simulations.constant(data_key, rows, classes, confidence, accuracy)
    return _of_one_bin(data, key, draws, abs(confidence - accuracy))


def _of_one_bin(
    data: tuple[jax.Array, jax.Array], key: jax.Array, draws: int, gap: float
) -> Outcomes:
    """Compute the outcomes of a model whose examples lie in one bin, with this true gap."""

    def true(name: str) -> float:
        return gap**2 if name == "squared_error" else gap

    return _bounds_of(data, key, draws, [("", {})], true)


def _bounds_of(
    data: tuple[jax.Array, jax.Array],
    key: jax.Array,
    draws: int,
    clusterings: Sequence[tuple[str, dict[str, Any]]],
    true: Callable[[str], float],
) -> Outcomes:
    by_name: Outcomes = {}
    for suffix, clusters in clusterings:
        bound = inference.noise_bound(
            TOP_LABEL, *data, key=key, level=LEVEL, num_resamples=draws, **clusters
        )
        for name, part in bound.items():
            ends = part.value, part.low, part.high
            by_name[name + suffix] = Outcome(*ends, part.p_value, true(name))
        error = inference.debiased_squared_error(*data, level=LEVEL, **clusters)
        ends = error.value, error.low, error.high
        by_name["squared_error" + suffix] = Outcome(*ends, truth=true("squared_error"))
    return by_name


def classwise(key: jax.Array, rows: int, classes: int, case: str, draws: int) -> Outcomes:
    """Compute the noise bound of the classwise ECE."""
    temperature, (data_key, key) = TEMPERATURES[case], jax.random.split(key)
    data = simulations.one_model(data_key, rows, classes, False, temperature)
    bound = inference.noise_bound(
        metrics.classwise_ece, *data, key=key, level=LEVEL, num_resamples=draws
    )
    true = simulations.truth(classes, temperature).values["classwise_ece"]
    ends = bound.value, bound.low, bound.high
    return {"classwise_ece": Outcome(*ends, bound.p_value, true)}


def bootstrapped(key: jax.Array, rows: int, classes: int, case: str, draws: int) -> Outcomes:
    """Compute percentile intervals of binned errors, for which they fail, and of means."""
    temperature, (data_key, key) = TEMPERATURES[case], jax.random.split(key)
    data = simulations.one_model(data_key, rows, classes, False, temperature)
    true = simulations.truth(classes, temperature).values
    several = inference.estimates(
        BOOTSTRAPPED, *data, key=key, level=LEVEL, method="percentile", num_resamples=draws
    )
    return {name: _outcome(estimate, true[name]) for name, estimate in several.items()}


def by_test(
    key: jax.Array,
    rows: int,
    classes: int,
    case: str,
    draws: int,
    *,
    all_pairs: bool = False,
    dependent: bool = False,
) -> Outcomes:
    """Compute p-values by test name; the noise bounds have the p-values of binned errors."""
    data_key, key = jax.random.split(key)
    data = simulations.one_model(data_key, rows, classes, dependent, TEMPERATURES[case])
    by_name = {}
    for name, test in inference.calibration_tests().items():
        taken = inspect.signature(test).parameters
        if name in metrics.catalogue() or (name in OF_ALL_PAIRS) != all_pairs:
            continue
        given = {"key": key, "num_resamples": draws}
        options: dict[str, Any] = {option: given[option] for option in given if option in taken}
        for suffix, clusters in _clusterings(rows, dependent):
            if not clusters or "cluster" in taken:
                p_value_of = functools.partial(inference.calibration_test, name, *data)
                result = p_value_of(**clusters, **options)
                by_name[name + suffix] = Outcome(p_value=result.p_value)
    return by_name


# --------------------------------------------------------------------------------------------
# Two models.

SHARPER, EQUAL = "both calibrated, B sharper", "equal errors"
PAIRS: dict[str, Callable[..., Any]] = {
    SHARPER: simulations.sharper,
    EQUAL: simulations.equal_errors,
    "A calibrated, B T = 1.15": functools.partial(simulations.less_calibrated, temperature=1.15),
    "A calibrated, B T = 1.5": functools.partial(simulations.less_calibrated, temperature=1.5),
}


def _true_differences(case: str, classes: int) -> dict[str, float]:
    """Return the true changes from A to B; the errors and temperatures are equal in two cases."""
    if case in (SHARPER, EQUAL):
        return {"squared_error": 0.0, "ece": 0.0, "log T": 0.0}
    temperature = PAIRS[case].keywords["temperature"]  # type: ignore[attr-defined]
    true = simulations.truth(classes, temperature).values
    of_metrics = {name: true[name] for name in ("squared_error", "ece")}
    return {**of_metrics, "log T": math.log(temperature)}


def pairs(
    key: jax.Array, rows: int, classes: int, case: str, draws: int, dependent: bool = False
) -> Outcomes:
    """Compare the squared errors, the ECEs, the temperatures and the NLLs of two models."""
    data_key, key = jax.random.split(key)
    data = PAIRS[case](data_key, rows, classes, dependent)
    true, by_name = _true_differences(case, classes), {}
    for suffix, clusters in _clusterings(rows, dependent):
        options: dict[str, Any] = {"level": LEVEL, **clusters}
        squared = inference.compare_calibration(*data, **options)
        by_name["squared_error" + suffix] = _outcome(squared, true["squared_error"])
        error = inference.compare_ece(*data, key=key, num_resamples=draws, **options)
        by_name["ece" + suffix] = _outcome(error, true["ece"])
        of_log = inference.compare_temperature(*data, **options)
        by_name["log T" + suffix] = _outcome(of_log, true["log T"])
        parts = inference.compare_refinement(*data, **options)
        p_value = parts.calibration.p_value
        by_name["calibration part of the NLL" + suffix] = Outcome(p_value=p_value)
    return by_name


def paired_bootstrap(key: jax.Array, rows: int, classes: int, case: str, draws: int) -> Outcomes:
    """Compute the p-value of the resampled difference of two ECEs, which is not valid."""
    data_key, key = jax.random.split(key)
    a, b, labels = PAIRS[case](data_key, rows, classes, False)
    change = inference.paired_bootstrap(
        metrics.ece, a, b, labels, key=key, level=LEVEL, num_resamples=draws
    )
    return {"ece": Outcome(*map(float, change[:4]))}


# --------------------------------------------------------------------------------------------
# Dependent examples.


def _clusterings(rows: int, dependent: bool) -> list[tuple[str, dict[str, Any]]]:
    """Return the options of the calls, with a suffix of their names."""
    if not dependent:
        return [("", {})]
    return [("", {"clusters": simulations.clusters_of(rows)}), (", clusters ignored", {})]


def _cost(rows: int, classes: int) -> float:
    """Return a share of the sets that keeps large sets affordable."""
    return min(1.0, max(0.1, 1e5 / (rows * classes)))


T1 = ("T = 1",)
QUESTIONS = {
    "bounds": Question(
        "Intervals and tests of binned errors",
        "`inference.noise_bound` of three metrics, and `inference.debiased_squared_error`. At T = 1"
        " the model is calibrated and its true error is 0.",
        tuple(TEMPERATURES),
        T1,
        bounds,
        lambda rows, classes: 1.0,
    ),
    "confident": Question(
        "Intervals and tests of binned errors of confident models",
        f"The same for models with confidences of {simulations.LEAST:g} to {simulations.MOST:g},"
        " all in one of 15 bins, that are right less often by the gap. The gap is their true error,"
        " and its square the true squared error.",
        tuple(GAPS),
        ("gap 0",),
        of_confident,
        lambda rows, classes: 0.5,
    ),
    "rare_errors": Question(
        "Intervals of binned errors of accurate models, whose errors are rare",
        "The same for models with one confidence. Most of them are under-confident: of 200 examples"
        " often none is wrong, and the variance of what was observed is then 0.",
        tuple(RARE),
        (),
        of_rare_errors,
        lambda rows, classes: 1.0,
    ),
    "classwise": Question(
        "Intervals and tests of the classwise error",
        "`inference.noise_bound` of `classwise_ece`.",
        tuple(TEMPERATURES),
        T1,
        classwise,
        _cost,
    ),
    "bootstrap": Question(
        "Intervals of the bootstrap",
        "Percentile intervals: they hold for means, the AURC, the AUGRC and the risk at a coverage."
        " They fail for binned errors and for `coverage_at_risk`, the largest of many coverages.",
        tuple(TEMPERATURES),
        T1,
        bootstrapped,
        lambda rows, classes: 0.25,
    ),
    "tests": Question(
        "Tests of calibration",
        "`inference.calibration_test(name, ...)`. At T = 1 the hypothesis is true; the other"
        " columns show power.",
        tuple(TEMPERATURES),
        T1,
        by_test,
        lambda rows, classes: 1.0,
    ),
    "all_pairs": Question(
        "Tests of calibration that compare all pairs of examples",
        "They cost the square of the number of examples, so they are measured up to 1,000.",
        tuple(TEMPERATURES),
        T1,
        functools.partial(by_test, all_pairs=True),
        lambda rows, classes: 0.1,
        most=1000,
    ),
    "pairs": Question(
        "Is one of two models better calibrated?",
        "`inference.compare_calibration` of squared errors, `compare_ece`, `compare_temperature`"
        " and `compare_refinement`. The hypothesis is true in the first two kinds of pairs. In"
        " the others the logits of B are those of A times T, so the change of log T is exact.",
        tuple(PAIRS),
        (SHARPER, EQUAL),
        pairs,
        _cost,
    ),
    "paired_bootstrap": Question(
        "The bootstrap of a difference, which is not a test of calibration",
        "`inference.paired_bootstrap` of the ECE rejects because sharpness changes the bias.",
        (SHARPER, EQUAL),
        (SHARPER, EQUAL),
        paired_bootstrap,
        lambda rows, classes: 0.1,
    ),
    "clusters": Question(
        "Dependent examples, one model",
        f"Clusters of {simulations.CLUSTER_SIZE} examples with a correlation of"
        f" {simulations.CORRELATION}; with `clusters=` and without.",
        ("T = 1", "T = 1.5"),
        T1,
        functools.partial(bounds, dependent=True),
        lambda rows, classes: 0.25,
        fewest=600,
    ),
    "clustered_tests": Question(
        "Dependent examples, tests of calibration",
        "The same clusters, with `inference.calibration_test`.",
        ("T = 1", "T = 1.5"),
        T1,
        functools.partial(by_test, dependent=True),
        lambda rows, classes: 0.25,
        fewest=600,
    ),
    "clustered_pairs": Question(
        "Dependent examples, two models",
        "The same clusters, with the comparisons of two models.",
        (SHARPER, EQUAL, "A calibrated, B T = 1.5"),
        (SHARPER, EQUAL),
        functools.partial(pairs, dependent=True),
        lambda rows, classes: 0.25 * _cost(rows, classes),
        fewest=600,
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
        Cell(part, n, k, case, max(2, round(sets * QUESTIONS[part].share(n, k))))
        for n in examples
        for part in parts
        if QUESTIONS[part].fewest <= n <= QUESTIONS[part].most
        for k in classes
        for case in QUESTIONS[part].cases
    ]


class Results:
    """Finished cells in a JSON file, which is replaced atomically; in memory without a path."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path) if path else None
        self._rows: list[tables.Row] = []

    def rows(self) -> list[tables.Row]:
        """Return all finished cells."""
        if self._path is None or not self._path.exists():
            return self._rows
        content = json.loads(self._path.read_text(encoding="utf-8"))
        if "cells" not in content:
            raise cli.Refused(f"--cells={self._path} has no finished cells. Name a new file.")
        return content["cells"]

    def origin(self) -> str:
        """Describe the file and the commits of its cells."""
        if self._path is None or not self._path.exists():
            return "in memory"
        commits = collections.Counter(row["commit"] for row in self.rows())
        counted = ", ".join(f"{number} at commit {c}" for c, number in commits.items())
        return f"{self._path.name}, measured {counted}"

    def lacks(self, cell: Cell) -> bool:
        """Check whether a cell is missing, or has fewer sets than requested."""
        return not any(
            _place(row) == cell.place and row["sets"] >= cell.sets for row in self.rows()
        )

    def add(self, row: tables.Row) -> None:
        """Add a finished cell; one with fewer sets at the same place is replaced."""
        others = [each for each in self.rows() if _place(each) != _place(row)]
        origin = provenance.published()
        self._rows = [*others, row | {"commit": origin["commit"]}]
        if self._path is not None:
            content = {"provenance": origin, "cells": self._rows}
            with writing.replacing(self._path) as new:
                new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _place(row: tables.Row) -> tuple[Any, ...]:
    return tuple(row[field] for field in Cell._fields[:4])


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


def _measure_all(cells: Sequence[Cell], draws: int, processes: int, results: Results) -> None:
    progress = functools.partial(tqdm.tqdm, total=len(cells), leave=False, disable=None)
    measure = functools.partial(measured, draws=draws)
    if processes == 1:
        for cell in progress(cells):
            results.add(measure(cell))
        return
    with pool_of(processes) as pool:
        waiting = [pool.submit(measure, cell) for cell in cells]
        try:
            for done in progress(concurrent.futures.as_completed(waiting)):
                results.add(done.result())
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
    results = Results(cells)
    _measure_all([cell for cell in chosen if results.lacks(cell)], draws, processes, results)
    pivoted, sections = _tables_of(results.rows())
    setting = {
        "cells": results.origin(),
        "sets": _span([row["sets"] for row in results.rows()]),
        "examples": _span([row["examples"] for row in results.rows()]),
        "nominal coverage": LEVEL,
        "size of tests": SIZE,
    }
    return tables.Report("Coverage and size", pivoted, sections, setting=setting)


if __name__ == "__main__":
    tables.run(main)
