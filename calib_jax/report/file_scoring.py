"""Score files of predictions or answers: read them, match them, and call `score`."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.report import calibration
from calib_jax.report.answer_scoring import check_same, score_answers
from calib_jax.report.class_order import match_classes
from calib_jax.report.predictions import FLOOR, as_logits, average, probability_rows
from calib_jax.report.reading.answer_files import models_of
from calib_jax.report.reading.prediction_files import models_in, read_predictions
from calib_jax.report.reading.prediction_tables import Predictions
from calib_jax.report.records import GIVEN
from calib_jax.report.scoring import INTERVALS, Report, score


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
    positive: str | None = None,
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
    held_out = [fit_on] if isinstance(fit_on, str) else list(fit_on or ())
    calibration.check_request(
        calibrate, dict.fromkeys(held_out, ((), ())) or None, cross_fit, criterion
    )
    if "" in (*predictions, *held_out, *compare):
        raise ValueError("the name of a file is empty: give the name, or leave the option out.")
    files, models_of_files = _files(predictions)
    if not files:
        raise ValueError("there is nothing to score: give a file of predictions.")
    options: dict[str, Any] = {
        "calibrate": calibration.registered(calibrate),
        "cross_fit": cross_fit,
        "criterion": criterion,
        "metrics": metrics or None,
        "num_bins": bins,
        "costs": _costs_of(costs),
        "abstain_cost": abstain_cost,
        "per_class": per_class,
        "level": level,
        "method": interval,
        "num_resamples": resamples,
        "seed": seed,
        "positive": positive,
    }
    how: dict[str, Any] = {"probabilities": probabilities, "clusters": clusters or None}
    all_files = [*files, *compare]
    called = [models_of_files.get(file, "") for file in all_files]
    answers, notes = models_of(all_files, called, **how)
    if answers:
        refused = {"average": average, "first_label": first_label, "floor": floor is not None}
        refused["probabilities"] = probabilities and answers[0].kind != "probability"
        if given := next((option for option, is_given in refused.items() if is_given), None):
            raise ValueError(f"--{given} is for predictions of classes: leave it out for answers.")
        # Files without a column of models belong to the scored files, in their order.
        in_order = len(held_out) in (1, len(all_files)) and len(all_files) > 1
        stems = [
            name or pathlib.Path(file).stem for file, name in zip(all_files, called, strict=True)
        ]
        fit_models, notes_on_fit = models_of(
            held_out,
            stems[: len(held_out)] if in_order else [""] * len(held_out),
            probabilities=probabilities,
        )
        if held_out and not fit_models:
            raise ValueError(f"--fit_on={held_out[0]} must hold answers, too.")
        report = score_answers(
            answers,
            fit_on=fit_models,
            name=name,
            use_clusters=clusters != "",
            per_group=per_group,
            notes=[*notes, *notes_on_fit],
            **options,
        )
        named = {"predictions": ", ".join([*files, *compare])}
        return dataclasses.replace(report, settings=report.settings | named)

    if floor is not None and not probabilities:
        raise ValueError("--floor is for --probabilities: leave it out for logits.")
    scored = files if average else files[:1]
    others = [*compare] if average else [*files[1:], *compare]
    first = models_of_files[scored[0]] if len(scored) == 1 else f"mean of {len(scored)}"
    names = _names([first or scored[0], *others], [first, *map(models_of_files.get, others)], name)
    return _score_classes(
        scored,
        others,
        held_out,
        names,
        first_label=first_label,
        clusters=clusters,
        per_group=per_group,
        probabilities=probabilities,
        floor=FLOOR if floor is None else floor,
        **options,
    )


def _score_classes(
    scored: Sequence[str],
    others: Sequence[str],
    held_out: Sequence[str],
    names: Sequence[str],
    *,
    first_label: int,
    clusters: str | None,
    per_group: bool,
    probabilities: bool,
    **options: Any,
) -> Report:
    """Read predictions of classes, put the classes into the order of the first file, and score.

    Args:
      scored: the file of the first model, or the files whose average is the first model.
      others: the files of the models that are compared with the first.
      held_out: the files of other examples, on which a calibrator is fitted.
      names: the names of the models; empty for one model without a name.
      first_label: see `score_files`.
      clusters: the name of the clusters, "" for none, None for the clusters of the first file, or
        its first axis if labels have several.
      per_group: whether to add a table of the groups.
      probabilities: whether the files hold probabilities.
      **options: see `score`.
    """
    how: dict[str, Any] = {"first_label": first_label, "clusters": clusters or None}
    first = read_predictions(scored[0], probabilities=probabilities, **how)

    def read(file: str) -> Predictions:
        contents = read_predictions(file, probabilities=probabilities, **how)
        return match_classes(
            contents, first, name=file, baseline_name=scored[0], probabilities=probabilities
        )

    files, fits = [*scored, *others], list(map(read, held_out))
    contents = [first, *map(read, files[1:])]
    used = ["weights", *["groups"] * per_group, *["clusters"] * (clusters != "")]
    _check_same_examples(files, contents, used)
    shared = [
        calibration.on_shared(of_file[:3], fit[:3], "example", fit_file)
        for fit_file, fit in zip(held_out, fits, strict=True)
        for of_file in contents
    ]
    if clusters and first.clusters is None:
        raise ValueError(
            f"{scored[0]} has no column or array called {clusters!r}: correct --clusters, or"
            " leave it out."
        )
    models = list(names) or [GIVEN]
    evidence, file_of = {}, {}
    for model, places in zip(models, _paired(held_out, scored, others), strict=False):
        several, fit_names = [fits[k] for k in places], [held_out[k] for k in places]
        _check_same_examples(fit_names, several, ["weights"])
        evidence[model] = (_mean_of(several, probabilities), several[0].labels, several[0].weights)
        file_of[model] = {"file": ", ".join(fit_names)}
    groups = first.groups if per_group else None
    ids, on_clusters = (None, []) if clusters == "" else _clusters_of(first)
    rest = contents[len(scored) :]
    report = score(
        _mean_of(contents[: len(scored)], probabilities),
        first.labels,
        weights=first.weights,
        groups=None if groups is None else groups.reshape(-1),
        clusters=ids,
        fit_on=evidence or None,
        compare={model: other.logits for model, other in zip(models[1:], rest, strict=True)},
        name=models[0],
        class_names=first.class_names or None,
        probabilities=probabilities,
        **options,
    )
    read_files = [*contents[: len(scored)], *fits, *rest]
    notes = [*dict.fromkeys(note for each in read_files for note in each.notes), *on_clusters]
    if left := models[len(evidence) :] if evidence else []:
        verb = "is" if len(left) == 1 else "are"
        notes.append(
            f"{', '.join(left)} {verb} not calibrated: --fit_on is given once, for"
            f" {models[0]}. Repeat it to calibrate every model, in their order."
        )
    return dataclasses.replace(
        report,
        settings=report.settings | {"predictions": ", ".join([*scored, *others])},
        calibrators={
            column: fit | file_of.get(fit["predictions"], {})
            for column, fit in report.calibrators.items()
        },
        notes=[*notes, *report.notes],
        headlines=[line for line in shared if line],
    )


def _files(given: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Replace folders by the files in them, and name these by their models, other files by ""."""
    files: list[str] = []
    names: dict[str, str] = {}
    for name in given:
        models = models_in(pathlib.Path(name)) if pathlib.Path(name).is_dir() else {"": name}
        files += models.values()
        names |= {file: model for model, file in models.items()}
    return files, names


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


def _check_same_examples(
    files: Sequence[str], contents: Sequence[Predictions], columns: Sequence[str]
) -> None:
    """Raise an error for a file whose labels, or values of a used column, differ from the first."""
    first = contents[0]
    for file, each in zip(files, contents, strict=True):
        if not np.array_equal(each.labels, first.labels):
            raise ValueError(
                f"{file} has other labels than {files[0]}.\nA paired comparison and an average"
                " need the same examples in the same order."
            )
        check_same((files[0], file), first, each, columns, "example")


def _clusters_of(contents: Predictions) -> tuple[np.ndarray | None, list[str]]:
    """Return the clusters of a file and a note: by default the images of pixels, or the texts."""
    labels = contents.labels
    if contents.clusters is not None or labels.ndim < 2:
        return contents.clusters, []
    index = np.arange(len(labels)).reshape(-1, *[1] * (labels.ndim - 1))
    return np.broadcast_to(index, labels.shape), [
        "The labels of one image or text, the first axis of the file, are a cluster; --clusters="
        " resamples single labels."
    ]


def _mean_of(models: Sequence[Predictions], probabilities: bool) -> np.ndarray:
    """Return the logits of a model, or the average of the probabilities of several models."""
    if len(models) == 1:
        return models[0].logits
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
    kind, advice = "a matrix of costs", "give a CSV file of numbers, a row per class, and no header"
    # Given a name, NumPy would also open addresses and archives.
    text = io.StringIO(reading.text(name, kind, advice))
    with reading.guard(name, kind, advice):
        with warnings.catch_warnings(action="ignore"):  # of an empty file
            costs = np.loadtxt(text, delimiter=",", ndmin=2)
        if not costs.size:
            raise ValueError("it is empty")
        return costs
