"""Score files of predictions: read them, bring them to the same rows and classes, and score."""

from __future__ import annotations

import dataclasses
import operator
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.report import calibrate as calibration
from calib_jax.report import predictions as records
from calib_jax.report import read
from calib_jax.report.caveats import GIVEN
from calib_jax.report.predictions import Predictions, counted
from calib_jax.report.results import Report
from calib_jax.report.score import INTERVALS, score


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
) -> Report:
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
    files = [*given, *((file, "") for file in compare)]
    how: dict[str, Any] = {"probabilities": probabilities, "first_label": first_label, "per": per}
    models = _read(_named(files), clusters=clusters or None, **how)
    fits = _read([(file, "") for file in held_out], models[0], **how)
    if average and not models[0].of_classes:
        raise ValueError("--average is for predictions of classes: leave it out.")
    if floor is not None and models[0].kind != "probabilities":
        raise ValueError("--floor is for --probabilities: leave it out.")
    for fit in fits:  # `score` compares each model with its own examples alone
        for each in models:
            # Rounded rows of a sharper model are equal to some of the fit by chance.
            if each.questions is not None or records.same_examples(each[:3], fit[:3]):
                calibration.on_shared(each, fit, fit.file)
    notes = [note for each in (*models, *fits) for note in each.notes]
    used = ["weights", *["groups"] * per_group, *["clusters"] * (clusters != "")]
    models, of_rows = records.on_same_rows(models, used)
    number = len(given) if average else 1
    if average:
        mean = records.mean_of(models[:number])._replace(model=f"mean of {number}")
        models = [mean, *models[number:]]
    if len(name) > len(models):
        raise ValueError(f"--name is given {len(name)} times, and there are {len(models)} to name.")
    names = [*name, *(each.model for each in models[len(name) :])]
    if len(models) == 1 and not name and models[0].questions is None and not given[0][1]:
        names = [GIVEN]
    calibration.check_distinct(names)
    ids, on_clusters = _clusters_of(models[0], clusters)
    evidence = _evidence(names, fits, number)
    if evidence and (left := [model for model in names if model not in evidence]):
        is_given = f"{'is' if len(left) == 1 else 'are'} not calibrated: --fit_on is given for"
        note = f"{', '.join(left)} {is_given} {', '.join(evidence)}."
        on_clusters.append(f"{note} Repeat it for every model, in their order.")
    models = [each._replace(clusters=ids) for each in models]
    groups = models[0].groups if per_group else None
    options |= {"num_bins": bins, "method": interval, "num_resamples": resamples, "floor": floor}
    options |= {"criterion": criterion, "metrics": metrics or None, "costs": read.costs(costs)}
    report = score(
        models[0],
        compare=dict(zip(names[1:], models[1:], strict=True)) or None,
        name=names[0],
        fit_on=evidence or None,
        groups=groups if groups is None or isinstance(groups, dict) else groups.reshape(-1),
        per=per if per is None or isinstance(groups, dict) else "group",
        all_pairs=not models[0].of_classes,
        **options,
    )
    settings = report.settings | {"predictions": ", ".join(file for file, _ in files)}
    notes = [*dict.fromkeys(notes), *of_rows, *on_clusters, *report.notes]
    return dataclasses.replace(report, settings=settings, notes=notes)


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
            if len({"classes" if one.of_classes else one.kind for one in (first, each)}) > 1:
                both = f"{file} holds {each.kind}, and {first.file} {first.kind}"
                raise ValueError(f"{both}: compare models, and fit calibrators, on the same kind.")
            if first.of_classes and first.ordinal is None:
                is_p = each.kind == "probabilities"
                each = records.match_classes(
                    each, first, name=file, baseline_name=first.file, probabilities=is_p
                )
            models.append(each)
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
        note = "The labels of one image or text, the first axis of the file, are a cluster;"
        note += " --clusters= resamples single labels."
    if ids is None or chosen == "":
        return None, []
    if ids.dtype == object:  # an array of names pads every cell
        ids = np.unique(ids, return_inverse=True)[1].reshape(labels.shape)
    return ids, [note] * bool(note)


def _evidence(names: Sequence[str], fits: list[Predictions], number: int) -> dict[str, Predictions]:
    """Find the examples that each model is fitted on: by the name of the model, or in their order.

    An average of several files is fitted on one file, or on the average of as many files.
    """
    if len(names) > 1 and fits and all(fit.model for fit in fits):
        return {fit.model: fit for fit in fits}
    if number > 1 and len(fits) in (number, number + len(names) - 1):
        averaged = [fit._replace(model=fit.file) for fit in fits[:number]]
        mean = records.mean_of(records.on_same_rows(averaged, ["weights"])[0])
        file = ", ".join(fit.file for fit in averaged)
        fits = [mean._replace(model="", file=file), *fits[number:]]
    if len(fits) not in (0, 1, len(names)):
        sizes = f"{counted(len(fits), 'time')}, for {counted(len(names), 'model')}"
        advice = "Give it once, for the first model, or once for each model in their order."
        raise ValueError(f"--fit_on is given {sizes}.\n{advice}")
    return dict(zip(names, fits, strict=False))
