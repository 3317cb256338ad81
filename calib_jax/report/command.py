"""Score saved predictions of any model: the command calib-score.

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
pair LOGITS.npy,LABELS.npy, .csv, .tsv or .parquet with columns label, logit_0, logit_1, ... (and
group, cluster, weight), or samples_TASK.jsonl of lm-evaluation-harness. Columns may be named by
classes, too, as logit_cat or cat, if labels are these names. Singular and plural names are
equivalent. Other arrays and columns are not read, and the report lists them. One column of logits
is a binary model. Labels count from 0, or from --first_label. Weight 0 leaves an example out.
Clusters are the images of pixels or the documents of sentences: with them, or with --clusters=NAME
of another column, whole clusters are resampled. No model, config or accelerator is needed. Every
number has an interval.

Answers with one number each are a file .csv, .jsonl, .parquet or .npz with columns
confidence,correct, or probability,label for the probability of class 1, or score,correct for scores
that are no probabilities, which need --calibrate. Optional columns are question, model, group,
cluster and weight. Logs of Inspect, .eval or .json, hold such answers, too. Models are compared on
the questions that they share.
"""

import argparse
import dataclasses
import functools
import math
import operator
import os
import pathlib
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax import calibrators
from calib_jax import metrics as metrics_package
from calib_jax.core import checks, texts
from calib_jax.core.checks import nearest
from calib_jax.core.files.writing import keep_programs
from calib_jax.core.types import Scalar
from calib_jax.report import calibrate as calibration
from calib_jax.report import predictions as records
from calib_jax.report import read, render, results
from calib_jax.report.caveats import GIVEN
from calib_jax.report.predictions import FLOOR, Predictions, counted
from calib_jax.report.score import DEFAULT_METRICS, INTERVALS, OF_TWO_SETS, score, versions

PROGRAM = "calib-score"
# Errors of the request: a file, a value or a name, or a file or a number of bins that is too large
# for the memory of this machine. Others are bugs and keep a traceback.
MISTAKES = (ValueError, TypeError, LookupError, AttributeError, OSError, ImportError, MemoryError)


def score_files(
    *,
    predictions: Sequence[str] = (),
    average: bool = False,
    fit_on: Sequence[str] = (),
    compare: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    bins: int = 15,
    costs: str | None = None,
    per_group: bool = True,
    clusters: str | None = None,
    interval: str = "valid",
    resamples: int = 1000,
    probabilities: bool = False,
    floor: float | None = None,
    first_label: int = 0,
    name: Sequence[str] = (),
    criterion: Sequence[str] = ("nll",),
    per: str | None = None,
    **options: Any,
) -> results.Report:
    r"""Read files of predictions and score them.

    Each option is an option of the command; `calib-score --help` explains all of them. Further
    options are those of `score`.

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
    held_out = [fit_on] if isinstance(fit_on, str) else list(fit_on or ())
    if "" in (*predictions, *held_out, *compare):
        raise ValueError("the name of a file is empty: give the name, or leave the option out.")
    given = [(file, model) for each in predictions for model, file in read.models_in(each).items()]
    if not given:
        raise ValueError("there is nothing to score: give a file of predictions.")
    files = _named([*given, *((file, "") for file in compare)])
    how: dict[str, Any] = {"probabilities": probabilities, "first_label": first_label, "per": per}
    models = _read(files[: len(given)], clusters=clusters or None, **how)
    number = len(models) if average else 1  # a file may hold several models
    models += _read(files[len(given) :], models[0], clusters=clusters or None, **how)
    fits = _read([(file, "") for file in held_out], models[0], **how)
    if average and not models[0].of_classes:
        raise ValueError("--average is for predictions of classes: leave it out.")
    if floor is not None and models[0].kind != "probabilities":
        raise ValueError("--floor is for --probabilities: leave it out.")
    models, fits = ([each._replace(least=floor) for each in of] for of in (models, fits))
    for fit in fits:  # `score` compares each model with its own examples alone
        for each in models:
            if each.questions is not None or each.file == fit.file:
                calibration.on_shared(each, fit)
    notes = [note for each in (*models, *fits) for note in each.notes]
    used = ["weights", *["groups"] * per_group, *["clusters"] * (clusters != "")]
    models, of_rows = records.on_same_rows(models, used)
    if average:
        mean = records.mean_of(models[:number])._replace(model=f"mean of {number}")
        models, notes = [mean, *models[number:]], [*mean.notes, *notes]
    if len(name) > len(models):
        raise ValueError(f"--name is given {len(name)} times, and there are {len(models)} to name.")
    names = [*name, *(each.model for each in models[len(name) :])]
    if len(models) == 1 and not name and models[0].questions is None and not given[0][1]:
        names = [GIVEN]
    calibration.check_distinct(names)
    ids, on_clusters = _clusters_of(models[0], clusters)
    evidence = _evidence(names, [each.model for each in models], fits, number)
    if evidence and (left := [model for model in names if model not in evidence]):
        note = f"{', '.join(left)}: not calibrated, because --fit_on is given for"
        on_clusters.append(f"{note} {', '.join(evidence)}: repeat it for every model, in order.")
    if first_label and models[0].of_classes and not models[0].class_names:
        # A report shows the numbers of the file, and `positive` takes them.
        last = first_label + max((2, *models[0].logits.shape[1:][-1:]))  # one column: two classes
        models[0] = models[0]._replace(class_names=tuple(map(str, range(first_label, last))))
    models = [each._replace(clusters=ids) for each in models]
    if not per_group and per is None:
        models = [each._replace(groups=None) for each in models]
    options |= {"num_bins": bins, "method": interval, "num_resamples": resamples, "floor": floor}
    options |= {"criterion": criterion, "metrics": metrics or None, "costs": read.costs(costs)}
    options |= {"fit_on": evidence or None, "per": per, "all_pairs": not models[0].of_classes}
    others = dict(zip(names[1:], models[1:], strict=True))
    report = score(models[0], compare=others or None, name=names[0], **options)
    report.settings["predictions"] = ", ".join(file for file, _ in files)
    notes = [*dict.fromkeys(notes), *of_rows, *on_clusters, *report.notes]
    # `per` needs the groups of the rows also without their table.
    return dataclasses.replace(report, notes=notes, groups=report.groups * per_group)


def _named(files: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Name the models that have no name by the shortest names of their files that differ.

    >>> _named([("a/x.npz", "ours"), ("b/y.npz", "")]), _named([("a/x.csv", ""), ("b/x.csv", "")])
    ([('a/x.npz', 'ours'), ('b/y.npz', 'y')], [('a/x.csv', 'a/x.csv'), ('b/x.csv', 'b/x.csv')])
    """
    names: list[str] = []
    for short in (operator.attrgetter("stem"), operator.attrgetter("name"), str):
        names = [name or short(pathlib.Path(file.split(",")[0])) for file, name in files]
        if len({*names}) == len(names):
            break
    again = [f"{name} (again)" if name in names[:k] else name for k, name in enumerate(names)]
    return [(file, name) for (file, _), name in zip(files, again, strict=True)]


def _read(
    files: Sequence[tuple[str, str]], first: Predictions | None = None, **how: Any
) -> list[Predictions]:
    """Read the models of all files, with the classes of the first one in its order."""
    models: list[Predictions] = []
    for file, name in files:
        for each in read.read_models(file, **how):
            each = each._replace(model=each.model or name, file=file)
            first = first or each
            records.same_kind(each, first)
            models.append(records.match_classes(each, first))
    return models


def _clusters_of(given: Predictions, chosen: str | None) -> tuple[np.ndarray | None, list[str]]:
    """Return the clusters: a column, the questions with several rows, or images and texts."""
    labels, ids, note = given.labels, given.clusters, ""
    if ids is None and given.questions is not None:
        number = len({*given.questions.tolist()})
        if number < len(labels):
            ids, what = given.questions, "rows of" if given.of_classes else "answers to"
            note = f"Several {what} one question are a cluster: {counted(number, 'question')}."
    elif ids is None and labels.ndim > 1:
        ids = np.broadcast_to(np.indices(labels.shape, sparse=True)[0], labels.shape)
        note = "The first axis (images, texts) is the cluster; --clusters= resamples single labels."
    if ids is None or chosen == "":
        return None, []
    # Numbers, because an array of names pads every cell.
    ids = np.unique(ids, return_inverse=True)[1].reshape(labels.shape)
    return ids, [note] * bool(note)


def _evidence(
    names: Sequence[str], models: Sequence[str], fits: list[Predictions], number: int
) -> dict[str, Predictions]:
    """Find the examples that each model is fitted on: by the name of the model, or in their order.

    An average of several files is fitted on one file, or on the average of as many files.

    Args:
      names: the name of each model in the report.
      models: its name in its file.
      fits: the examples; those of models that are not scored are left out.
      number: how many models are averaged.
    """
    own = {fit.model: fit for fit in fits if fit.model}
    if number == 1 < max(len(names), len(own)) and len(own) == len(fits):
        return {name: own[of] for name, of in zip(names, models, strict=True) if of in own} or own
    if number > 1 and len(fits) in (number, number + len(names) - 1):
        averaged = [fit._replace(model=fit.file) for fit in fits[:number]]
        mean = records.mean_of(records.on_same_rows(averaged, ["weights"])[0])
        fits = [mean._replace(model="", file=", ".join(f.file for f in averaged)), *fits[number:]]
    if len(fits) not in (0, 1, len(names)):
        sizes = f"{counted(len(fits), 'time')}, for {counted(len(names), 'model')}"
        raise ValueError(f"--fit_on is given {sizes}: give it once, or for each model in order.")
    return dict(zip(names, fits, strict=False))


def _lists() -> str:
    """List what options take by name."""
    metrics = [
        name
        for name, metric in metrics_package.catalogue().items()
        if metric.__signature__.return_annotation == Scalar and OF_TWO_SETS not in name
    ]
    lists = {"metrics": metrics, "calibrators": calibrators.catalogue()}
    wrap = functools.partial(textwrap.fill, subsequent_indent="  ", break_on_hyphens=False)
    return "\n\n".join(wrap(f"{kind}: {', '.join(sorted(of))}", 80) for kind, of in lists.items())


def _separated(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


# Name, type (list: may be repeated; bool: a switch), the default, and the help of each option. No
# shell expands ~ in --out=~/report.
_OPTIONS: tuple[tuple[str, Any, Any, str], ...] = (
    ("out", os.path.expanduser, None, "Folder for report.json, .csv, .md, .html and figures."),
    ("markdown", bool, False, "Print a section for a model card."),
    ("notes", bool, False, "Print all tables and notes, and what the numbers mean."),
    ("cache", str, None, "Folder of compiled programs, by default in the user's; empty: none."),
    ("predictions", list, [], "File to score, or a folder of them; the first is the baseline."),
    ("average", bool, False, "Average the probabilities of several files."),
    ("calibrate", str, None, "Calibrator: NAME, NAME:option=value or a path MODULE:NAME."),
    ("fit_on", list, [], "Other predictions to fit it on, of the first model or of each in order."),
    ("cross_fit", int, None, "Number of folds, instead of --fit_on."),
    ("per", str, None, "Column of groups, each with a temperature drawn towards the common one."),
    ("criterion", _separated, ["nll"], "What T minimizes: nll, or METRIC:STEP on a grid to 10."),
    ("compare", list, [], "File of other predictions of the same examples."),
    ("metrics", _separated, None, f"Names of metrics; by default {', '.join(DEFAULT_METRICS)}."),
    ("bins", int, 15, "Number of bins of every metric that has bins."),
    ("costs", os.path.expanduser, None, "CSV: a row per class, a column per decision; adds costs."),
    ("abstain_cost", float, None, "Cost of an example left undecided."),
    ("threshold_for", str, None, "accuracy:0.95, error:0.05, or precision:0.9 of the event of two"
     " classes: adds the confidence above which predictions keep it, with a guarantee."),
    ("predict_losses", bool, False, "Add the calibration expected after other losses."),
    ("per_class", bool, False, "Add a table per class."),
    ("per_group", bool, True, "Add a table per group if the file has groups."),
    ("clusters", str, None, "Column of clusters, by default the one called clusters; empty: none."),
    ("level", float, 0.9, "Nominal coverage of the intervals, a fraction."),
    ("interval", str, "valid", "valid: bounds of the noise of binned errors; percentile or basic."),
    ("resamples", int, 1000, "Number of bootstrap resamples, at least 2 / (1 - level)."),
    ("seed", int, 0, "Seed of the bootstrap and of the folds."),
    ("probabilities", bool, False, "The files hold probabilities."),
    ("floor", float, None, f"Least probability; by default {FLOOR:g}, or part of a rounding step."),
    ("positive", str, None, "Of two classes, the event; by default the second class."),
    ("first_label", int, 0, "The label of the first class; 1 if labels count from 1."),
    ("name", list, [], "Name of the predictions; further ones name those of --compare."),
)  # fmt: skip


def _parsed(arguments: Sequence[str], program: str = PROGRAM) -> dict[str, Any]:
    """Parse a command line; print the help, or an error of one sentence, and exit if it is wrong.

    >>> parsed = _parsed(["a.npz", "--no-per-group", "--notes", "--fit-on=b.npz"])
    >>> parsed["per_group"], parsed["notes"], parsed["fit_on"]
    (False, True, ['b.npz'])
    """
    usage, look = "%(prog)s FILE ... [--OPTION=VALUE ...]", argparse.RawDescriptionHelpFormatter
    lists = _lists() if {"-h", "--help"} & {*arguments} else ""
    page: Any = {"description": __doc__, "epilog": lists, "formatter_class": look}
    parser = argparse.ArgumentParser(program, usage, allow_abbrev=False, **page)
    actions: dict[Any, Any] = {bool: {"action": argparse.BooleanOptionalAction}}
    actions[list] = {"action": "append", "type": os.path.expanduser}
    for name, kind, default, explanation in _OPTIONS:
        names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        shown = f" (default: {default})" if default and kind is not bool else ""
        text = (explanation + shown).replace("%", "%%")
        how = actions.get(kind, {"type": kind})
        parser.add_argument(*names, dest=name, default=default, help=text, **how)
    version = f"%(prog)s {versions()['calib_jax']}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("files", nargs="*", metavar="PREDICTIONS", help="As --predictions.")
    parsed, unknown = parser.parse_known_intermixed_args(arguments)
    options = vars(parsed)
    if unknown:
        name = unknown[0].partition("=")[0].lstrip("-")
        parser.error(f"there is no option --{name}{nearest(name, options)}")
    # With fewer resamples none lies beyond an end of the interval: 20 at level .9, 200 at .99.
    checks.level(level := options["level"])
    checks.at_least("--resamples", options["resamples"], round(2 / (1 - level)), " at this level")
    options["predictions"] = [*options["predictions"], *options.pop("files")]
    return options


def _run(options: dict[str, Any], command: str) -> None:
    """Score files, print the tables, and write them to a folder.

    Args:
      options: the options of the command.
      command: the command line, for the report.
    """
    out, markdown, notes, cache = map(options.pop, ("out", "markdown", "notes", "cache"))
    if out and os.path.isfile(out):  # before anything is computed
        raise ValueError(f"--out={out} is a file: give a folder for the report.")
    started = time.perf_counter()
    folder = keep_programs(cache)
    report = score_files(**options)
    report.settings["command"] = command
    lines = math.inf if notes else render.LINES
    text = render.as_text(results.page(report), lines, explained=notes)
    print(results.as_model_card(report) if markdown else text)
    if out:
        written = texts.printable(f"\nwritten to {out}: {', '.join(report.save(out))}")
        print(written, file=sys.stderr if markdown else None)
    kept = f"kept in {texts.one_line(str(folder))} (--cache= keeps none)" if folder else "not kept"
    print(f"{time.perf_counter() - started:.1f} s; compiled programs are {kept}.", file=sys.stderr)


def main(arguments: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command, and return its exit code.

    The code is 0, or 2 after one sentence about a mistake. As in a shell, it is 128 plus the number
    of a signal after Ctrl-C, or when the reader of the output (`calib-score run.npz | head`) quits.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _run(_parsed(arguments, program), f"{program} {shlex.join(arguments)}")
        print(end="", flush=True)  # sys.stdout is None if a shell closed it
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        return 128 + 13  # SIGPIPE, which Windows lacks
    except MISTAKES as error:
        print(f"error: {texts.printable(str(error))}", file=sys.stderr)
        return 2
    return 0
