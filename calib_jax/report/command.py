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
import functools
import math
import os
import re
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from calib_jax import calibrators
from calib_jax import metrics as metrics_package
from calib_jax.core import checks, texts
from calib_jax.core.checks import nearest
from calib_jax.core.files.writing import keep_programs
from calib_jax.report import render, results
from calib_jax.report.files import score_files
from calib_jax.report.predictions import FLOOR
from calib_jax.report.score import DEFAULT_METRICS, OF_TWO_SETS, SEVERAL_NUMBERS, versions

PROGRAM = "calib-score"
# Errors of the request: a file, a value or a name. Others are bugs and keep a traceback.
MISTAKES = (
    *(ValueError, TypeError, LookupError, AttributeError, OSError, ImportError),
    MemoryError,  # a file or a number of bins that is too large for this machine
)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, and whose help lists what options take by name."""

    def format_help(self) -> str:
        metrics = {*metrics_package.catalogue()} - {*SEVERAL_NUMBERS, *OF_TWO_SETS}
        lists = {"metrics": metrics, "calibrators": calibrators.catalogue()}
        wrap = functools.partial(textwrap.fill, subsequent_indent="  ", break_on_hyphens=False)
        lines = [wrap(f"{kind}: {', '.join(sorted(of))}", 80) for kind, of in lists.items()]
        return "\n\n".join([super().format_help().rstrip(), *lines]) + "\n"

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def _separated(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


# Name, type (list: may be repeated; bool: a switch), the default, and the help of each option.
_OPTIONS: tuple[tuple[str, Any, Any, str], ...] = (
    ("out", str, None, "Folder for report.json, .csv, .md, .html and figures."),
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
    ("costs", str, None, "CSV file: a row per class, a column per decision; adds their cost."),
    ("abstain_cost", float, None, "Cost of an example left undecided."),
    ("threshold_for", str, None, "accuracy:0.95, error:0.05, or precision:0.9 of the event of two"
     " classes: adds the confidence above which predictions keep it, with a guarantee."),
    ("predict_losses", bool, False, "Add the calibration expected after other losses."),
    ("per_class", bool, False, "Add a table per class."),
    ("per_group", bool, True, "Add a table per group if the file has groups."),
    ("clusters", str, None, "Column of clusters, by default the one called clusters; empty: none."),
    ("level", float, 0.9, "Nominal coverage of the intervals, a fraction."),
    ("interval", str, "valid", "valid: bounds of the noise of binned errors; percentile or basic."),
    ("resamples", int, 1000, "Number of bootstrap resamples, at least 20."),
    ("seed", int, 0, "Seed of the bootstrap and of the folds."),
    ("probabilities", bool, False, "The files hold probabilities."),
    ("floor", float, None, f"Least probability; by default half a rounding step, or {FLOOR:g}."),
    ("positive", str, None, "Of two classes, the event; by default the second class."),
    ("first_label", int, 0, "The label of the first class; 1 if labels count from 1."),
    ("name", list, [], "Name of the predictions; further ones name those of --compare."),
)  # fmt: skip


def _parsed(arguments: Sequence[str], program: str = PROGRAM) -> dict[str, Any]:
    """Parse a command line; print the help, or an error of one sentence, and exit if it is wrong.

    A switch may also be written as absl writes it: --notes=true, --per_group=false.

    >>> parsed = _parsed(["a.npz", "--per_group=false", "--notes=true", "--fit-on=b.npz"])
    >>> parsed["per_group"], parsed["notes"], parsed["fit_on"]
    (False, True, ['b.npz'])
    """
    switches = "|".join(name for name, kind, *_ in _OPTIONS if kind is bool)
    arguments = [re.sub(rf"^--({switches})=false$", r"--no-\1", each) for each in arguments]
    arguments = [re.sub(rf"^--({switches})=true$", r"--\1", each) for each in arguments]
    look = argparse.RawDescriptionHelpFormatter
    parser = _Parser(program, description=__doc__, formatter_class=look, allow_abbrev=False)
    actions: dict[Any, Any] = {bool: {"action": argparse.BooleanOptionalAction}}
    actions[list] = {"action": "append"}
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
    # Fewer draws have no 5 % beyond an end of an interval of 90 %.
    checks.at_least("--resamples", options["resamples"], 20)
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
    text = results.as_text(report, lines, explained=notes)
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
