"""Read the samples that lm-evaluation-harness writes with --log_samples, of multiple-choice tasks.

    lm_eval --model hf --model_args pretrained=NAME --tasks arc_easy --log_samples --output_path OUT

writes OUT/NAME/samples_arc_easy_DATE.jsonl, one JSON object for each question:

    {"doc_id": 0, "target": "2", "filtered_resps": [["-1.5", "False"], ["-0.5", "True"], ...],
     "resps": [[["-1.5", "False"]], ...], "arguments": ..., ...}

`filtered_resps` has the log-likelihood of each choice, and whether greedy decoding writes it.
`target` is the number of the right choice, or its text. Here the logits of a question are the
log-likelihoods of the choices, so the prediction equals the prediction of the harness's metric
`acc` (`acc_norm` divides by the length of the choice). A question with fewer choices than others
has logits of -inf, which are probabilities of 0.
"""

import json
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.report.reading.prediction_tables import Predictions, counted, listed, shown

_KIND = "samples of lm-evaluation-harness"
_LINE_BYTES = 1 << 25
# Keys of a generating task: whether the answer is right, and its log-probability.
_CORRECT = ("exact_match", "acc")
_LOG_PROBABILITIES = ("logprobs", "logprob", "cumulative_logprob")


def read(path: pathlib.Path) -> Predictions:
    """Read the log-likelihoods and the targets of a file, in the order of the documents."""
    samples: list[tuple[int, list[float], int]] = []
    filters: dict[str, int] = {}
    ambiguous = 0
    with reading.guard(path, _KIND, library=True):  # any JSON may be in a sample
        for number, where, sample in _samples(path, filters):
            logits = _log_likelihoods(sample, where)
            target, is_ambiguous = _target(sample, len(logits), where)
            ambiguous += is_ambiguous
            document = sample.get("doc_id")
            samples.append((document if isinstance(document, int) else number, logits, target))
    samples.sort(key=lambda sample: sample[0])
    most = max(len(logits) for _, logits, _ in samples)
    padded = [logits + [-math.inf] * (most - len(logits)) for _, logits, _ in samples]
    labels = np.array([label for _, _, label in samples])
    notes = []
    if fewer := sum(len(logits) < most for _, logits, _ in samples):
        notes.append(
            f"{path}: {fewer:,} of {counted(len(samples), 'question')} have fewer than {most}"
            " choices; the missing ones have probability 0."
        )
    notes += _on_filters(path, filters)
    if ambiguous:
        notes.append(
            f"{path}: {counted(ambiguous, 'target')} {'is' if ambiguous == 1 else 'are'} the number"
            " of a choice and the text of another one: read as numbers, counted from 0."
        )
    return Predictions(np.array(padded), labels, notes=tuple(notes))


def answers(path: pathlib.Path) -> tuple[dict[str, list[Any]] | None, list[str]]:
    """Read the columns of answers: of a generating task, or of plain JSONL.

    Returns:
      the columns by name, None for the samples of a multiple-choice task; and notes.
    """
    filters: dict[str, int] = {}
    rows: list[Mapping[str, Any]] = []
    with reading.guard(path, _KIND, library=True):
        for _, where, sample in _samples(path, filters):
            if not rows and _has_choices(sample):
                return None, []
            rows.append(_generated(sample, where) if _is_logged(sample) else sample)
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}, _on_filters(path, filters)


def _is_logged(sample: Mapping[str, Any]) -> bool:
    """Check whether the harness wrote a line; others are plain JSONL."""
    return "resps" in sample or "filtered_resps" in sample


def _has_choices(sample: Mapping[str, Any]) -> bool:
    """Check whether a sample has log-likelihoods of choices, and not a generated text."""
    responses = sample.get("filtered_resps") or sample.get("resps")
    if responses is None or "exact_match" in sample:
        return False
    while isinstance(responses, list) and len(responses) == 1:
        responses = responses[0]
    return not isinstance(responses, str)


def _generated(sample: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the number of a generated answer, and whether it is right, by column."""
    found = [name for name in (*_CORRECT, *sample.get("metrics", ())) if name in sample]
    if not found:
        raise Unreadable(
            f"{where} has no exact_match or other metric.\nRun the task with a metric of single"
            " answers, or add a key exact_match to each line, 1 where the answer is right."
        )
    cells = {"correct": sample[found[0]]}
    if (document := sample.get("doc_id")) is not None:
        cells["question"] = document
    for name in ("confidence", "score"):
        if name in sample:
            return {name: sample[name], **cells}
    for name in _LOG_PROBABILITIES:
        if name in sample:
            return {"score": total_log_probability(sample[name], name, where), **cells}
    raise Unreadable(
        f"{where} has no confidence: lm-evaluation-harness saves none for generated texts.\nAdd a"
        " key confidence, score or logprobs to each line, or give a CSV file with columns"
        " confidence,correct."
    )


def total_log_probability(value: Any, name: str, where: str) -> float:
    """Return a log-probability, or the sum of those of the tokens of the first sample."""
    while isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]
    tokens = value if isinstance(value, list) else [value]
    try:
        if not tokens:  # a sum of nothing would be certainty
            raise ValueError
        return math.fsum(float(token) for token in tokens)
    except (TypeError, ValueError, OverflowError):
        raise Unreadable(
            f"{where} has {name} {shown(str(value))}: give a number, or a list with the"
            " log-probability of each token."
        ) from None


def _samples(
    path: pathlib.Path, filters: dict[str, int]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the number of each line, its name for messages, and its object.

    Lines of the harness with another filter than the first repeat the documents, and are left out.

    Args:
      path: the path of the file.
      filters: receives the number of lines of each filter.
    """
    lines: dict[str, int] = {}  # line numbers of the documents
    with reading.opened(path, _KIND) as file:
        number = 0
        while line := file.readline(_LINE_BYTES):
            number += 1
            if len(line) == _LINE_BYTES:
                raise ValueError(f"line {number} has more than {_LINE_BYTES:,} bytes")
            if not line.strip():
                continue
            where = f"line {number} of {path}"
            try:
                sample = json.loads(line)
            except json.JSONDecodeError as error:
                why = error.msg.removesuffix(" at")  # "Invalid control character at"
                raise Unreadable(
                    f"{where} is no JSON object: {why} at character {error.pos + 1}."
                ) from None
            if not isinstance(sample, dict):
                raise Unreadable(f"{where} is no sample of lm-evaluation-harness.")
            name = str(sample.get("filter", "none")) if _is_logged(sample) else "none"
            filters[name] = filters.get(name, 0) + 1
            if name != next(iter(filters)):
                continue
            if (document := sample.get("doc_id")) is not None and _is_logged(sample):
                first = lines.setdefault(str(document), number)
                if first != number:
                    raise Unreadable(
                        f"{where} has the question of line {first} again (doc_id"
                        f" {shown(str(document))}): a question counts once, so give a file of one"
                        " task and one run."
                    )
            yield number, where, sample
    if not filters:
        raise Unreadable(f"{path} has no samples.")


def _log_likelihoods(sample: Mapping[str, Any], where: str) -> list[float]:
    """Return the log-likelihood of each choice; older versions write numbers as text."""
    responses = sample.get("filtered_resps") or [
        response[0] for response in sample.get("resps") or [] if response
    ]
    try:
        values = [float(value) for value, _greedy in responses]
    except (TypeError, ValueError, OverflowError):
        values = []
    if len(values) < 2:
        raise Unreadable(
            f"{where} has no log-likelihoods of choices; it has the keys"
            f" {listed(list(map(str, sample)))}.\nA .jsonl file holds samples of"
            " multiple-choice tasks, or answers with confidence and correct; logits and"
            " probabilities go into .csv, .parquet or .npz."
        )
    return values


def _target(sample: Mapping[str, Any], num_choices: int, where: str) -> tuple[int, bool]:
    """Return the number of the right choice, which may be given as text.

    Also return whether a target is both the number of one choice and the text of another.
    """
    target = sample.get("target")
    text = str(target).strip()
    places = [place for place, choice in enumerate(_choices(sample)) if choice == text]
    if not text.isdecimal() and len(places) > 1:
        raise Unreadable(
            f"{where} has the target {text[:40]!r}, the text of {len(places)} of its choices.\nGive"
            " the number of the right choice, counted from 0."
        )
    number = int(text) if text.isdecimal() else next(iter(places), -1)
    if number >= num_choices and places:
        raise Unreadable(
            f"{where} has the target {text[:40]!r}, the text of one of its choices and the number"
            " of none.\nGive the numbers of the right choices, counted from 0: a text of digits is"
            " read as a number."
        )
    if not 0 <= number < num_choices:
        raise Unreadable(
            f"{where} has the target {text[:40]!r}, which is none of its {num_choices} choices.\n"
            "The target must be the number of a choice, counted from 0, or its text."
        )
    is_digits = isinstance(target, str) and text.isdecimal()
    return number, is_digits and any(place != number for place in places)


def _choices(sample: Mapping[str, Any]) -> list[str]:
    """List the texts of the choices: the second argument of each request."""
    arguments = sample.get("arguments") or []
    requests = list(arguments.values()) if isinstance(arguments, Mapping) else list(arguments)
    texts = [
        request.get("arg_1") if isinstance(request, Mapping) else request[1]
        for request in requests
        if isinstance(request, Mapping | list) and len(request) > 1
    ]
    return [str(text).strip() for text in texts]


def _on_filters(path: pathlib.Path, filters: Mapping[str, int]) -> list[str]:
    if len(filters) <= 1:
        return []
    used, *others = filters
    return [f"{path}: the filter {used} is read, and not {', '.join(others)}."]
