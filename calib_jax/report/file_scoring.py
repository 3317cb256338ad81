"""Score files of predictions or answers: read them, match them, and call `score`."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.report import calibration
from calib_jax.report.answer_scoring import models_of, score_answers
from calib_jax.report.class_order import match_classes
from calib_jax.report.overlap import same_examples
from calib_jax.report.predictions import FLOOR, as_logits, average, probability_rows
from calib_jax.report.reading.prediction_files import Predictions, models_in, read_predictions
from calib_jax.report.records import GIVEN
from calib_jax.report.scoring import INTERVALS, Report, score

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
    held_out = [fit_on] if isinstance(fit_on, str) else list(fit_on or ())
    calibration.check_request(
        calibrate, dict.fromkeys(held_out, ((), ())) or None, cross_fit, criterion
    )
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
    }
    how: dict[str, Any] = {"probabilities": probabilities, "clusters": clusters or None}
    answers, notes = models_of([*files, *compare], models_of_files, **how)
    if answers:
        _refuse_for_answers(average=average, first_label=first_label != 0, floor=floor is not None)
        fit_models, notes_on_fit = models_of(held_out, {}, **how)
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

    scored = files if average else files[:1]
    others = [*compare] if average else [*files[1:], *compare]
    first = models_of_files.get(scored[0], "")
    first = first if len(scored) == 1 else _AVERAGED.format(len(scored))
    names = _names([first or scored[0], *others], [first, *map(models_of_files.get, others)], name)
    return _score_classes(
        _read(scored, others, held_out, first_label=first_label, **how),
        names,
        use_clusters=clusters,
        per_group=per_group,
        probabilities=probabilities,
        floor=FLOOR if floor is None else floor,
        **options,
    )


@dataclasses.dataclass(frozen=True)
class _Matched:
    """The contents of files, whose classes are in the order of the first file.

    Attributes:
      names: the names of the files, those of `scored` first, then those of `others`.
      scored: the first model, or the models whose average is the first model.
      others: the models that are compared with the first.
      held_out_names: the names of the files of other examples.
      held_out: other examples, on which a calibrator is fitted.
    """

    names: list[str]
    scored: list[Predictions]
    others: list[Predictions]
    held_out_names: list[str]
    held_out: list[Predictions]


def _read(
    scored: Sequence[str],
    others: Sequence[str],
    held_out: Sequence[str],
    *,
    probabilities: bool,
    **how: Any,
) -> _Matched:
    """Read files, and reorder the classes of each to match the first file."""
    baseline = read_predictions(scored[0], probabilities=probabilities, **how)

    def read(file: str) -> Predictions:
        contents = read_predictions(file, probabilities=probabilities, **how)
        return match_classes(
            contents, baseline, name=file, baseline_name=scored[0], probabilities=probabilities
        )

    names, models = [*scored, *others], [baseline, *map(read, [*scored[1:], *others])]
    for file, contents in zip(names, models, strict=True):
        _check_labels(contents, file, baseline, scored[0])
    fits = list(map(read, held_out))
    for fit_file, fit in zip(held_out, fits, strict=True):
        for file, contents in zip(names, models, strict=True):
            if same_examples(_examples(fit), _examples(contents)):
                raise ValueError(
                    f"--fit_on={fit_file} holds the same examples as {file}, and a calibrator is"
                    " never fitted on what is scored.\nGive other examples, or --cross_fit=5."
                )
    count = len(scored)
    return _Matched(names, models[:count], models[count:], list(held_out), fits)


def _score_classes(
    files: _Matched,
    names: Sequence[str],
    *,
    use_clusters: str | None,
    per_group: bool,
    probabilities: bool,
    **options: Any,
) -> Report:
    """Score predictions of classes.

    Args:
      files: the models, and other examples.
      names: the names of the models; empty for one model without a name.
      use_clusters: the name of the clusters, "" for none, None for the clusters of the first file.
      per_group: whether to add a table of the groups.
      probabilities: whether the files hold probabilities.
      **options: see `score`.
    """
    first, scored = files.scored[0], files.names[: len(files.scored)]
    clusters = None if use_clusters == "" else first.clusters
    if use_clusters and clusters is None:
        raise ValueError(
            f"{scored[0]} has no column or array called {use_clusters!r}: correct --clusters, or"
            " leave it out."
        )
    models = list(names) or [GIVEN]
    evidence, file_of = {}, {}
    pairs = _paired(files.held_out_names, scored, files.names[len(scored) :])
    for model, places in zip(models, pairs, strict=False):
        several = [files.held_out[place] for place in places]
        fit_names = [files.held_out_names[place] for place in places]
        for file, contents in zip(fit_names, several, strict=True):
            _check_labels(contents, file, several[0], fit_names[0])
        rows = _mean_of(several, probabilities)
        evidence[model] = (rows, several[0].labels, several[0].weights)
        file_of[model] = {"file": ", ".join(fit_names)}
    groups = first.groups if per_group else None
    report = score(
        _mean_of(files.scored, probabilities),
        first.labels,
        weights=first.weights,
        groups=None if groups is None else groups.reshape(-1),
        clusters=clusters,
        fit_on=evidence or None,
        compare={
            model: contents.logits for model, contents in zip(models[1:], files.others, strict=True)
        },
        name=models[0],
        class_names=first.class_names or None,
        probabilities=probabilities,
        **options,
    )
    used = [*files.scored, *files.held_out, *files.others]
    notes = list(dict.fromkeys(note for contents in used for note in contents.notes))
    if left := models[len(evidence) :] if evidence else []:
        verb = "is" if len(left) == 1 else "are"
        notes.append(
            f"{', '.join(left)} {verb} not calibrated: --fit_on is given once, for"
            f" {models[0]}. Repeat it to calibrate every model, in their order."
        )
    return dataclasses.replace(
        report,
        settings=report.settings | {"predictions": ", ".join(scored)},
        calibrators={
            column: fit | file_of.get(fit["predictions"], {})
            for column, fit in report.calibrators.items()
        },
        notes=[*notes, *report.notes],
    )


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
    # Given a name, NumPy would also open addresses and archives.
    text = reading.text(name, "a matrix of costs", "give a CSV file")
    try:
        with warnings.catch_warnings(action="ignore"):  # of an empty file
            costs = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"--costs={name} must hold numbers without a header, a row per class, separated by"
            " commas.\n"
            f"{reading.reason(error)}."
        ) from None
    if not costs.size:
        raise ValueError(f"--costs={name} is empty: give numbers, a row per class.")
    return costs
