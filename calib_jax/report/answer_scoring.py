"""Score files of answers: their models are compared on the questions that they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax import calibrators
from calib_jax.metrics import Stated
from calib_jax.report import calibration
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
    headlines = _on_shared_questions(models, fit_on, evidence)
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
        fit_on={names[k]: _as_examples(of) for k, of in evidence.items()} or None,
        name=names[0],
        all_pairs=True,
        probabilities=are_probabilities,
        **options,
    )
    if clusters is not None and first.clusters is None:
        questions = counted(len(set(clusters.tolist())), "question")
        on_pairs.append(f"Several answers to one question are a cluster: {questions}.")
    if evidence and (left := [name for k, name in enumerate(names) if k not in evidence]):
        verb = "is" if len(left) == 1 else "are"
        on_pairs.append(
            f"{', '.join(left)} {verb} not calibrated: --fit_on has none of its answers."
        )
    return dataclasses.replace(
        report, notes=[*notes, *on_pairs, *report.notes], headlines=headlines or report.headlines
    )


def _as_input(answers: Answers) -> Any:
    """Return what `score` takes: probabilities of class 1, a Stated or a Scored."""
    if answers.kind == "probability":
        return answers.values
    kind = Stated if answers.kind == "confidence" else calibrators.Scored
    return kind(answers.values.astype(np.float32), answers.correct)


def _as_examples(answers: Answers) -> tuple[Any, Any, Any]:
    """Return the examples of a fit as `score` takes them."""
    labels = answers.correct if answers.kind == "probability" else None
    return _as_input(answers), labels, answers.weights


def _on_shared_questions(
    models: Sequence[Answers], fit_on: Sequence[Answers], evidence: dict[int, Answers]
) -> list[str]:
    """Count the scored questions that a calibrator is fitted on; many are an error.

    Files may number their questions from 1 each: a number is the same question only beside the
    same answer.
    """
    headlines = []
    for place, fitted in evidence.items():
        sets = [_questions(models[place]), _questions(fitted)]
        if not all(sets):
            continue
        if all(question.isdecimal() for questions in sets for question in questions):
            answers = [
                {*zip(each.questions, each.values, each.correct, strict=True)}
                for each in (models[place], fitted)
                if each.questions is not None
            ]
            number = len({question for question, *_ in answers[0] & answers[1]})
        else:
            number = len(sets[0] & sets[1])
        scored, asked = map(len, sets)
        line = calibration.shared_sentence(number, scored, asked, "question", "--fit_on")
        headlines.append(line)
    return [line for line in dict.fromkeys(headlines) if line]


def _questions(answers: Answers) -> set[str]:
    return set() if answers.questions is None else set(answers.questions.tolist())


def _evidence(models: Sequence[Answers], fit_on: Sequence[Answers]) -> dict[int, Answers]:
    """Find the held-out answers of each model, by its place."""
    by_name = {each.model: each for each in fit_on}
    if len(models) == len(fit_on) == 1:
        by_name = {models[0].model: fit_on[0]}
    evidence = {}
    for place, each in enumerate(models):
        if other := by_name.pop(each.model, None):
            evidence[place] = other
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
