"""Score files of answers: their models are compared on the questions that they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax import calibrators
from calib_jax.metrics import Stated
from calib_jax.report.reading.answer_files import Answers
from calib_jax.report.reading.prediction_tables import counted, listed, shown
from calib_jax.report.records import GIVEN
from calib_jax.report.scoring import Report, score

_MOST_LISTED = 5


def score_answers(
    models: Sequence[Answers],
    *,
    fit_on: Sequence[Answers],
    name: Sequence[str],
    use_clusters: bool,
    per_group: bool,
    notes: Sequence[str],
    **options: Any,
) -> Report:
    """Score the answers of one or more models of the same questions.

    Args:
      models: the answers of each model; the first is the baseline of the others.
      fit_on: other answers, by which a calibrator is fitted: of the same models, or of one.
      name: other names of the models, in their order.
      use_clusters: whether several answers to one question, or a column, are clusters.
      per_group: whether to add a table of the groups.
      notes: notes on the files.
      **options: see `report.score`.
    """
    kinds = list(dict.fromkeys(each.kind for each in [*models, *fit_on]))
    if len(kinds) > 1:
        raise ValueError(
            f"the files have columns {' and '.join(kinds)}: models are compared, and calibrators"
            " fitted, on one kind of number."
        )
    evidence = _evidence(models, fit_on)
    names = [each.model for each in models]
    if len(name) > len(names):
        raise ValueError(f"--name is given {len(name)} times, for {counted(len(names), 'model')}.")
    names = [*name, *names[len(name) :]]
    names[0] = names[0] or GIVEN
    models, on_pairs = _paired(models)
    first = models[0]
    clusters = _clusters(first) if use_clusters else None
    several = dict(zip(names, map(_as_input, models), strict=True))
    given = several.pop(names[0])
    are_probabilities = first.kind == "probability"
    report = score(
        given,
        first.correct if are_probabilities else None,
        weights=first.weights,
        groups=first.groups if per_group else None,
        clusters=clusters,
        compare=several or None,
        fit_on={names[k]: of for k, of in evidence.items()} or None,
        name=names[0],
        all_pairs=True,
        probabilities=are_probabilities,
        **options,
    )
    if clusters is not None and first.clusters is None:
        questions = counted(len(set(clusters.tolist())), "question")
        on_pairs.append(f"Several answers to one question are a cluster: {questions}.")
    return dataclasses.replace(report, notes=[*notes, *on_pairs, *report.notes])


def _as_input(answers: Answers) -> Any:
    """Return what `score` takes: probabilities of class 1, a Stated or a Scored."""
    if answers.kind == "probability":
        return answers.values
    kind = Stated if answers.kind == "confidence" else calibrators.Scored
    return kind(answers.values.astype(np.float32), answers.correct)


def _evidence(
    models: Sequence[Answers], fit_on: Sequence[Answers]
) -> dict[int, tuple[Any, Any, Any]]:
    """Find the held-out answers of each model, by its place."""
    by_name = {each.model: each for each in fit_on}
    if len(models) == len(fit_on) == 1:
        by_name = {models[0].model: fit_on[0]}
    evidence = {}
    for place, each in enumerate(models):
        if other := by_name.pop(each.model, None):
            labels = other.correct if other.kind == "probability" else None
            evidence[place] = (_as_input(other), labels, other.weights)
    if by_name:
        raise ValueError(
            f"--fit_on has the model {shown(next(iter(by_name)))}, which is not scored; these are"
            f" {listed([each.model for each in models])}."
        )
    return evidence


def _clusters(answers: Answers) -> np.ndarray | None:
    """Return the clusters: the column of that name, or questions with several answers."""
    if answers.clusters is not None or answers.questions is None:
        return answers.clusters
    several = len(np.unique(answers.questions)) < len(answers.questions)
    return answers.questions if several else None


def _paired(models: Sequence[Answers]) -> tuple[list[Answers], list[str]]:
    """Select the answers to the questions that all models share, in one order.

    Of several answers to a question, all models keep as many as the model with the fewest.
    """
    if len(models) == 1:
        return list(models), []
    rows = [_rows_by_question(each) for each in models]
    shared = [question for question in rows[0] if all(question in of for of in rows[1:])]
    if not shared:
        raise ValueError(
            f"the models {listed([each.model for each in models], _MOST_LISTED)} share no question:"
            " models are compared on the same questions."
        )
    counts = [min(len(of[question]) for of in rows) for question in shared]
    paired = [
        each.rows(
            np.concatenate([of[question][:n] for question, n in zip(shared, counts, strict=True)])
        )
        for each, of in zip(models, rows, strict=True)
    ]
    left = {
        each.model: len(each.values) - len(kept.values)
        for each, kept in zip(models, paired, strict=True)
    }
    notes = []
    if any(left.values()):
        listing = ", ".join(f"{number:,} of {model}" for model, number in left.items() if number)
        notes.append(
            f"Compared on the {counted(len(shared), 'question')} that all models share: answers"
            f" left out: {listing}. Without a model, the others may share more questions."
        )
    columns = ["groups", "clusters", "weights", *["correct"] * (paired[0].kind == "probability")]
    for other in paired[1:]:
        check_same((paired[0].model, other.model), paired[0], other, columns, "question")
    return paired, notes


def _rows_by_question(answers: Answers) -> dict[str, list[int]]:
    if answers.questions is None:
        raise ValueError(
            f"the answers of {shown(answers.model)} have no column question: several models are"
            " compared on the questions that they share, so add a column question."
        )
    rows: dict[str, list[int]] = {}
    for row, question in enumerate(answers.questions.tolist()):
        rows.setdefault(question, []).append(row)
    return rows


def check_same(
    names: tuple[str, str], one: Any, other: Any, columns: Sequence[str], of: str
) -> None:
    """Raise an error if two models disagree on what belongs to the same question or example.

    Args:
      names: the names of both models, for the message.
      one: the answers or predictions of a model.
      other: those of another model, in the same order.
      columns: the attributes that must be equal.
      of: "question" or "example".
    """
    for column in columns:
        if not _are_equal(getattr(one, column), getattr(other, column)):
            name = {"correct": "label"}.get(column, column.removesuffix("s"))
            raise ValueError(
                f"{names[0]} and {names[1]} differ in the {name} of the same {of}: give the same"
                f" {name} for every model."
            )


def _are_equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Compare two columns; ids that are numbers in one file can be text in a table."""
    if one is None or other is None:
        return one is other
    if one.dtype.kind != other.dtype.kind:
        one, other = one.astype(str), other.astype(str)
    return np.array_equal(one, other)
