"""Score saved predictions of any model: the command calib-score, and `score_files`.

    calib-score run.npz
    calib-score run.npz --calibrate=temperature --fit_on=val.npz --out=folder
    calib-score run.npz --calibrate=temperature --cross_fit=5 --criterion=nll,ece,adaptive_ece:0.01
    calib-score first.npz second.npz            (a table of several models, or all of a folder)
    calib-score first.npz second.npz --average
    calib-score forest.csv --probabilities --floor=1e-6
    calib-score run.csv --markdown >> MODEL_CARD.md
    calib-score answers.csv                     (columns confidence,correct of answers)
    calib-score judge.csv --calibrate=isotonic --cross_fit=5    (columns score,correct)

A file is .npz with arrays `logits` and `labels` (and optionally `groups`, `clusters`, `weights`), a
pair LOGITS.npy,LABELS.npy, .csv or .parquet with columns label, logit_0, logit_1, ... (and group,
cluster, weight), or samples_TASK.jsonl of lm-evaluation-harness. Columns may also be named by
classes, as logit_cat or cat, if labels are these names. Singular and plural names are equivalent.
Other arrays and columns are not read, and the report lists them. One column of logits is a binary
model. Labels count from 0, or from --first_label. Weight 0 leaves an example out. Clusters are the
images of pixels or the documents of sentences: with them, or with --clusters=NAME of another
column, whole clusters are resampled. No model, config or accelerator is needed. Every number has an
interval.

Answers with one number each are a file .csv, .jsonl, .parquet or .npz with columns
confidence,correct, or probability,label for the probability of class 1, or score,correct for scores
that are no probabilities, which need --calibrate. Optional columns are question, model, group,
cluster and weight. Models are compared on the questions that they share.
"""

import argparse
import dataclasses
import functools
import io
import os
import pathlib
import re
import shlex
import signal
import sys
import textwrap
import time
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from calib_jax import calibrators
from calib_jax import metrics as metrics_package
from calib_jax.core import compiled
from calib_jax.core.files import escaping, reading
from calib_jax.core.inputs import checks
from calib_jax.core.names import nearest
from calib_jax.report import calibration, tables
from calib_jax.report.answer_scoring import models_of, score_answers
from calib_jax.report.chosen_metrics import DEFAULT_METRICS, OF_TWO_SETS, SEVERAL_NUMBERS
from calib_jax.report.class_order import match_classes
from calib_jax.report.overlap import same_examples
from calib_jax.report.predictions import FLOOR, as_logits, average, probability_rows
from calib_jax.report.reading.prediction_files import Predictions, models_in, read_predictions
from calib_jax.report.records import GIVEN
from calib_jax.report.scoring import INTERVALS, Report, score, versions

PROGRAM = "calib-score"
# Errors of the request: a file, a value or a name. Others are bugs and keep a traceback.
MISTAKES = (ValueError, TypeError, LookupError, AttributeError, OSError, ImportError)
_AVERAGED = "mean of {}"


def score_files(
    *,
    predictions: Sequence[str] = (),
    average: bool = False,
    calibrate: str | None = None,
    fit_on: Sequence[str] = (),
    cross_fit: int | None = None,
    criterion: Sequence[str] = ("nll",),
    compare: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    bins: int = 15,
    costs: str | None = None,
    abstain_cost: float | None = None,
    per_class: bool = False,
    per_group: bool = True,
    clusters: str | None = None,
    level: float = 0.9,
    interval: str = "valid",
    resamples: int = 1000,
    seed: int = 0,
    probabilities: bool = False,
    floor: float | None = None,
    first_label: int = 0,
    name: Sequence[str] = (),
) -> Report:
    r"""Read files of predictions and score them.

    Each option is an option of the command; `calib-score --help` explains all of them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(f"{folder}/run.csv").write_text(
    ...         "label,cat,dog\ndog,0.5,2\ncat,1,0\ncat,2,-1\n")
    ...     scored = score_files(
    ...         predictions=[f"{folder}/run.csv"], metrics=["accuracy"], resamples=10)
    >>> scored.value("accuracy"), scored.notes[0][-33:]
    (1.0, 'the classes are cat = 0, dog = 1.')
    """
    checks.one_of("interval", interval, INTERVALS)
    held_out_files = [fit_on] if isinstance(fit_on, str) else list(fit_on or ())
    calibration.check_request(
        calibrate, dict.fromkeys(held_out_files, ((), ())) or None, cross_fit, criterion
    )
    files, labels_of_files = _files(predictions)
    if not files:
        raise ValueError("there is nothing to score: give a file of predictions.")

    how: dict[str, Any] = {"probabilities": probabilities, "clusters": clusters or None}
    answers, notes_on_answers = models_of([*files, *compare], labels_of_files, **how)
    if answers:
        _refuse_for_answers(average=average, first_label=first_label != 0, floor=floor is not None)
        fit_models, notes_on_fit = models_of(held_out_files, {}, **how)
        if held_out_files and not fit_models:
            raise ValueError(f"--fit_on={held_out_files[0]} must hold answers, too.")
        report = score_answers(
            answers,
            fit_on=fit_models,
            name=name,
            use_clusters=clusters != "",
            per_group=per_group,
            notes=[*notes_on_answers, *notes_on_fit],
            calibrate=calibration.registered(calibrate),
            cross_fit=cross_fit,
            criterion=criterion,
            metrics=metrics,
            num_bins=bins,
            costs=_costs_of(costs),
            abstain_cost=abstain_cost,
            per_class=per_class,
            level=level,
            method=interval,
            num_resamples=resamples,
            seed=seed,
        )
        named = {"predictions": ", ".join([*files, *compare])}
        return dataclasses.replace(report, settings=report.settings | named)

    def read(file: str) -> Predictions:
        return read_predictions(
            file,
            probabilities=probabilities,
            first_label=first_label,
            clusters=clusters or None,
        )

    others = [*compare] if average else [*files[1:], *compare]
    scored = files if average else files[:1]
    models = [read(file) for file in scored]
    baseline = models[0]

    def in_order(file: str, contents: Predictions) -> Predictions:
        """Reorder the classes of a file to match the first file."""
        return match_classes(
            contents, baseline, name=file, baseline_name=scored[0], probabilities=probabilities
        )

    models = [baseline, *map(in_order, scored[1:], models[1:])]
    for file, contents in zip(scored[1:], models[1:], strict=True):
        _check_labels(contents, file, baseline, scored[0])
    logits = baseline.logits if len(models) == 1 else _mean_of(models, probabilities)
    compared = [in_order(file, read(file)) for file in others]
    for file, contents in zip(others, compared, strict=True):
        _check_labels(contents, file, baseline, scored[0])

    held_out = [in_order(file, read(file)) for file in held_out_files]
    for fit_file, fit in zip(held_out_files, held_out, strict=True):
        for file, contents in zip([*scored, *others], [*models, *compared], strict=True):
            if same_examples(_examples(fit), _examples(contents)):
                raise ValueError(
                    f"--fit_on={fit_file} holds the same examples as {file}, and a calibrator is"
                    " never fitted on what is scored.\nGive other examples, or --cross_fit=5."
                )
    used = [*models, *held_out, *compared]
    first = (
        labels_of_files.get(scored[0], "") if len(scored) == 1 else _AVERAGED.format(len(scored))
    )
    names = _names([first or scored[0], *others], [first, *map(labels_of_files.get, others)], name)

    ids = None if clusters == "" else models[0].clusters
    if clusters and ids is None:
        raise ValueError(
            f"{scored[0]} has no column or array called {clusters!r}: correct --clusters, or"
            " leave it out."
        )
    labels_of_models = names or [GIVEN]
    pairs = _paired(held_out_files, scored, others)
    evidence, file_of = {}, {}
    for label, places in zip(labels_of_models, pairs, strict=False):
        several = [held_out[place] for place in places]
        for place in places[1:]:
            _check_labels(
                held_out[place], held_out_files[place], several[0], held_out_files[places[0]]
            )
        rows = several[0].logits if len(several) == 1 else _mean_of(several, probabilities)
        evidence[label] = (rows, several[0].labels, several[0].weights)
        file_of[label] = ", ".join(held_out_files[place] for place in places)
    groups = models[0].groups if per_group else None
    report = score(
        logits,
        models[0].labels,
        weights=models[0].weights,
        groups=None if groups is None else groups.reshape(-1),
        clusters=ids,
        calibrate=calibration.registered(calibrate),
        fit_on=evidence or None,
        cross_fit=cross_fit,
        criterion=criterion,
        compare={
            label: contents.logits for label, contents in zip(names[1:], compared, strict=True)
        },
        name=names[0] if names else GIVEN,
        metrics=metrics or None,
        num_bins=bins,
        costs=_costs_of(costs),
        abstain_cost=abstain_cost,
        per_class=per_class,
        class_names=models[0].class_names or None,
        level=level,
        method=interval,
        num_resamples=resamples,
        seed=seed,
        probabilities=probabilities,
        floor=FLOOR if floor is None else floor,
    )
    settings = report.settings | {"predictions": ", ".join(scored)}
    notes = list(dict.fromkeys(note for contents in used for note in contents.notes))
    if left := labels_of_models[len(evidence) :] if evidence else []:
        verb = "is" if len(left) == 1 else "are"
        notes.append(
            f"{', '.join(left)} {verb} not calibrated: --fit_on is given once, for"
            f" {labels_of_models[0]}. Repeat it to calibrate every model, in their order."
        )
    fits = {
        column: fit | ({"file": file_of[fit["predictions"]]} if file_of else {})
        for column, fit in report.calibrators.items()
    }
    return dataclasses.replace(
        report, settings=settings, calibrators=fits, notes=[*notes, *report.notes]
    )


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def _whole_number(text: str, least: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if least is not None and value < least:
        raise argparse.ArgumentTypeError(f"it must be at least {least}, got {value}")
    return value


def _separated(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _parser(program: str) -> _Parser:
    """Build the parser of the command line: the options of `score_files` and more."""
    parser = _Parser(
        program,
        description=__doc__,
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def add(name: str, explanation: str, default: Any = None, **how: Any) -> None:
        """Add an option; --fit-on is accepted for --fit_on."""
        names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        shown = f" (default: {default})" if default else ""
        explanation = (explanation + shown).replace("%", "%%")
        parser.add_argument(*names, dest=name, default=default, help=explanation, **how)

    def switch(name: str, explanation: str, default: bool = False) -> None:
        """Add an option that is true or false; --no-draw and --nodraw are accepted for --draw."""
        add(name, explanation, default, action="store_true")
        spelled = (name, name.replace("_", "-"))
        negated = {f"{no}{word}": None for no in ("--no", "--no-") for word in spelled}
        parser.add_argument(*negated, dest=name, action="store_false", help=argparse.SUPPRESS)

    text: dict[str, Any] = {"metavar": "TEXT"}
    listed: dict[str, Any] = {"metavar": "TEXT,...", "type": _separated}
    repeated: dict[str, Any] = {"metavar": "TEXT", "action": "extend", "nargs": 1}
    number: dict[str, Any] = {"metavar": "X", "type": float}
    whole: dict[str, Any] = {"metavar": "N", "type": _whole_number}
    positive: dict[str, Any] = {"metavar": "N", "type": functools.partial(_whole_number, least=1)}
    natural: dict[str, Any] = {"metavar": "N", "type": functools.partial(_whole_number, least=0)}
    add("out", "Folder for report.json, .csv, .md, .html and figures.", **text)
    switch("markdown", "Print a section for a model card.")
    switch("notes", "Also print what the numbers mean.")
    add(
        "cache",
        "Folder of compiled programs, which make the next call faster; by default"
        " calib_jax/compiled in the user's cache folder. Empty keeps none.",
        **text,
    )
    add(
        "predictions",
        "File of predictions to score, or a folder with a file for each model. The first of several"
        " is the baseline of the others.",
        [],
        **repeated,
    )
    switch("average", "Average the probabilities of several files.")
    add(
        "calibrate",
        "Calibrator: its name, such as temperature, or an import path MODULE:NAME; options follow,"
        " as in histogram:num_bins=20.",
        **text,
    )
    add(
        "fit_on",
        "File of other predictions of the same model to fit it on. Repeat it for several models, in"
        " their order; a single one is that of the first model.",
        [],
        **repeated,
    )
    add("cross_fit", "Number of folds, instead of --fit_on.", **whole)
    add(
        "criterion",
        "What a temperature minimizes: nll; METRIC on the papers' grid 0.1, 0.2, ..., 10; or"
        " METRIC:STEP on another one. Several, separated by commas, are shown side by side.",
        "nll",
        **listed,
    )
    add("compare", "File of other predictions of the same examples.", [], **repeated)
    add(
        "metrics",
        "Names of metrics, separated by commas; by default"
        f" {', '.join(DEFAULT_METRICS[:-1])} and {DEFAULT_METRICS[-1]}.",
        **listed,
    )
    add("bins", "Number of bins of every metric that has bins.", 15, **positive)
    add(
        "costs",
        "CSV file: a row per class, a column per decision; adds the cost of decisions.",
        **text,
    )
    add("abstain_cost", "Cost of an example left undecided.", **number)
    switch("per_class", "Add a table per class.")
    switch("per_group", "Add a table per group if the file has groups.", True)
    add(
        "clusters",
        "Column or array of clusters, which are resampled as a whole; by default the one called"
        " clusters, if there is one. Empty resamples examples.",
        **text,
    )
    add("level", "Nominal coverage of the intervals, a fraction.", 0.9, **number)
    add(
        "interval",
        "valid: noise bounds of binned calibration errors, percentiles of other metrics; percentile"
        " or basic: bootstrap intervals of all metrics.",
        "valid",
        **text,
    )
    add("resamples", "Number of bootstrap resamples.", 1000, **positive)
    add("seed", "Seed of the bootstrap and of the folds.", 0, **natural)
    switch("probabilities", "The files hold probabilities.")
    add(
        "floor",
        "Smaller --probabilities are raised to this, so that the NLL is finite; by default"
        f" {FLOOR:g}.",
        **number,
    )
    add("first_label", "The label of the first class; 1 if labels count from 1.", 0, **natural)
    add(
        "name",
        "Name of the predictions in the tables; further ones name those of --compare.",
        [],
        **repeated,
    )
    parser.add_argument(
        "--version", action="version", version=f"{program} {versions()['calib_jax']}"
    )
    parser.add_argument(
        "files", nargs="*", metavar="PREDICTIONS", help="The same as --predictions."
    )
    return parser


def _epilog() -> str:
    """List what the options of the command accept by name."""
    lists = {
        "metrics": {*metrics_package.catalogue()} - {*SEVERAL_NUMBERS, *OF_TWO_SETS},
        "calibrators": calibrators.catalogue(),
        "formats": (".npz", "LOGITS.npy,LABELS.npy", ".csv", ".tsv", ".parquet", ".jsonl"),
    }
    return "\n\n".join(
        textwrap.fill(
            f"{kind}: {', '.join(sorted(names))}",
            80,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for kind, names in lists.items()
    )


def _parsed(arguments: Sequence[str], program: str = PROGRAM) -> dict[str, Any]:
    """Parse a command line; print the help, or an error of one sentence, and exit if it is wrong.

    >>> _parsed(["a.npz", "--per_group=false", "--fit-on=b.npz"])["per_group"]
    False
    """
    parser = _parser(program)
    known = vars(parser.parse_args([]))
    switches = "|".join(name for name, default in known.items() if isinstance(default, bool))
    spelled = re.compile(rf"--({switches})=(?:(true|1)|false|0)", re.IGNORECASE)

    def short(argument: str) -> str:
        """Return --draw for --draw=true, and --nodraw for --draw=false."""
        match = spelled.fullmatch(argument)
        return f"--{'' if match[2] else 'no'}{match[1].lower()}" if match else argument

    parsed, unknown = parser.parse_known_intermixed_args(list(map(short, arguments)))
    if unknown:
        name = unknown[0].partition("=")[0].lstrip("-")
        parser.error(f"there is no option --{name}{nearest(name, known.keys() - {'files'})}")
    options = vars(parsed)
    files = options.pop("files")
    return options | {"predictions": [*options["predictions"], *files]}


def _run(
    *,
    out: str | None,
    markdown: bool,
    notes: bool,
    cache: str | None,
    command: str,
    **options: Any,
) -> None:
    """Score files, print the tables, and write them to a folder.

    Args:
      out, markdown, notes, cache: see the help of the command.
      command: the command line, for the report.
      **options: options of `score_files`.
    """
    started = time.perf_counter()
    folder = compiled.keep_programs(cache)
    report = score_files(**options)
    report = dataclasses.replace(report, settings=report.settings | {"command": command})
    print(tables.as_model_card(report) if markdown else tables.as_text(report, explained=notes))
    if out:
        names = report.save(out)
        written = escaping.printable(f"\nwritten to {out}: {', '.join(names)}")
        print(written, file=sys.stderr if markdown else None)
    kept = f"compiled programs are kept in {escaping.one_line(str(folder))} (--cache= keeps none)"
    print(
        f"{time.perf_counter() - started:.1f} s;"
        f" {kept if folder else 'compiled programs are not kept'}.",
        file=sys.stderr,
    )


def main(arguments: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command, and return its exit code.

    The code is 0, or 2 after one sentence about a mistake. As in a shell, it is 128 plus the number
    of a signal after Ctrl-C, or when the reader of the output (`calib-score run.npz | head`) quits.
    """
    try:
        code = _code_of(sys.argv[1:] if arguments is None else arguments, program)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        return 128 + 13  # SIGPIPE, which Windows lacks
    return code


def _code_of(arguments: Sequence[str], program: str) -> int:
    options = _parsed(arguments, program)
    try:
        _run(**options, command=f"{program} {shlex.join(arguments)}")
    except BrokenPipeError:  # not an error: the reader has read enough
        raise
    except MISTAKES as error:
        print(f"error: {escaping.printable(str(error))}", file=sys.stderr)
        return 2
    return 0


def _files(given: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Replace folders by the files in them, and name these files by their models."""
    files: list[str] = []
    names: dict[str, str] = {}
    for name in given:
        if pathlib.Path(name).is_dir():
            models = models_in(pathlib.Path(name))
            files += models.values()
            names |= {file: model for model, file in models.items()}
        else:
            files.append(name)
    return files, names


def _examples(contents: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    return contents.logits, contents.labels, contents.weights


def _paired(fits: Sequence[str], scored: Sequence[str], others: Sequence[str]) -> list[list[int]]:
    """Choose the indices of the files that each model is fitted on, in the order of the models.

    An average of several files is fitted on one file, or on the average of as many files.

    >>> _paired(["v"], ["a"], ["b"]), _paired(["v", "w"], ["a"], ["b"])
    ([[0]], [[0], [1]])
    >>> _paired(["v", "w"], ["a", "b"], [])
    [[0, 1]]
    """
    num_files = len(scored) + len(others)
    if len(fits) == num_files or (len(fits) == len(scored) and len(fits) > 1):
        whole = [list(range(len(scored)))]
        return whole + [[place] for place in range(len(scored), len(fits))]
    if len(fits) > 1:
        ways = ["once, for the first model", f"{num_files} times, once for each in their order"]
        raise ValueError(
            f"--fit_on is given {len(fits)} times, and there"
            f" {'is 1 file' if num_files == 1 else f'are {num_files} files'} of predictions.\nGive"
            f" it {' or '.join(ways[: min(num_files, 2)])}."
        )
    return [[place] for place in range(len(fits))]


def _refuse_for_answers(**given: bool) -> None:
    """Raise an error for options that files of answers do not have."""
    if names := [name for name, is_given in given.items() if is_given]:
        raise ValueError(f"--{names[0]} is for predictions of classes: leave it out for answers.")


def _check_labels(
    contents: Predictions, file: str, baseline: Predictions, baseline_file: str
) -> None:
    if not np.array_equal(contents.labels, baseline.labels):
        raise ValueError(
            f"{file} has other labels than {baseline_file}.\nA paired comparison and an average"
            " need the same examples in the same order."
        )


def _mean_of(models: Sequence[Predictions], probabilities: bool) -> np.ndarray:
    """Average the probabilities of several models."""
    if probabilities:
        rows = [probability_rows(model.logits, weights=model.weights) for model in models]
        if len({model.shape for model in rows}) == 1:
            return np.mean(rows, axis=0)
    # `average` raises an error for different shapes.
    logits = [
        as_logits(model.logits, probabilities=probabilities, weights=model.weights)
        for model in models
    ]
    return np.asarray(average(logits))


def _names(files: Sequence[str], models: Sequence[str | None], chosen: Sequence[str]) -> list[str]:
    """Name the columns: by the chosen names, the models, or the names of the files.

    A single column without a chosen name stays unnamed here.

    >>> _names(["a/x.npz", "b/y.npz"], ["", None], ["ours"])
    ['ours', 'y']
    >>> _names(["a/x.npz", "b/x.npz"], ["", None], [])
    ['a/x.npz', 'b/x.npz']
    """
    if len(chosen) > len(files):
        raise ValueError(
            f"--name is given {len(chosen)} times, and there are {len(files)} to name."
        )
    if len(files) == 1:
        return list(chosen)
    paths = [pathlib.Path(file.split(",")[0]) for file in files]

    def named(short: Sequence[str]) -> list[str]:
        return [model or name for name, model in zip(short, models, strict=True)]

    choices = (named([path.stem for path in paths]), named([path.name for path in paths]))
    names = next((each for each in choices if len(set(each)) == len(each)), list(files))
    for number, name in enumerate(names):
        if name in names[:number]:
            names[number] = f"{name} (again)"
    return [*chosen, *names[len(chosen) :]]


def _costs_of(name: str | None) -> np.ndarray | None:
    """Read a matrix of costs."""
    if not name:
        return None
    # Given a name, NumPy would also open addresses and archives.
    text = reading.text(name, "a matrix of costs", "give a CSV file")
    try:
        with warnings.catch_warnings(action="ignore"):  # of an empty file
            costs = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"--costs={name} must hold numbers, a row per class, separated by commas.\n"
            f"{reading.reason(error)}."
        ) from None
    if not costs.size:
        raise ValueError(f"--costs={name} is empty: give numbers, a row per class.")
    return costs
