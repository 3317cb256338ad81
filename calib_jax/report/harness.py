"""Read the samples that lm-evaluation-harness writes with --log_samples.

    lm_eval --model hf --model_args pretrained=NAME --tasks arc_easy --log_samples --output_path OUT

writes OUT/NAME/samples_arc_easy_DATE.jsonl, one JSON object for each question:

    {"doc_id": 0, "target": "2", "filtered_resps": [["-1.5", "False"], ["-0.5", "True"], ...],
     "resps": [[["-1.5", "False"]], ...], "arguments": ..., ...}

`filtered_resps` has the log-likelihood of each choice, and whether greedy decoding writes it.
`target` is the number of the right choice, or its text. Here the logits of a question are the
log-likelihoods of the choices, so the prediction equals the prediction of the harness's metric
`acc` (`acc_norm` divides by the length of the choice). A question with fewer choices than others
has logits of -inf, which are probabilities of 0. Of generated texts, the harness saves whether they
are right, and the user adds a confidence, a score or log-probabilities to each line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core.files.reading import Unreadable
from calib_jax.report.columns import Request
from calib_jax.report.predictions import Predictions, counted, listed, shown

# Keys of a generating task: whether the answer is right, and its log-probability.
_CORRECT = ("exact_match", "acc")
_LOG_PROBABILITIES = ("logprobs", "logprob", "cumulative_logprob")

Rows = list[Mapping[str, Any]]


def is_logged(sample: Mapping[str, Any]) -> bool:
    """Check whether the harness wrote a line; others are plain JSONL."""
    return "resps" in sample or "filtered_resps" in sample


def read(how: Request, samples: Sequence[Mapping[str, Any]]) -> tuple[Any, Rows, list[str]]:
    """Return the predictions of a multiple-choice task, or the rows of generated answers; notes."""
    filters = list(dict.fromkeys(str(sample.get("filter", "none")) for sample in samples))
    notes = []
    if len(filters) > 1:
        used, *others = filters
        notes.append(f"{how.path}: the filter {used} is read, and not {', '.join(others)}.")
    kept = [
        (number, sample)
        for number, sample in enumerate(samples, start=1)
        if str(sample.get("filter", "none")) == filters[0]
    ]
    lines: dict[str, int] = {}
    for number, sample in kept:
        document = str(sample.get("doc_id", f"line {number}"))
        if (first := lines.setdefault(document, number)) != number:
            raise Unreadable(
                f"line {number} of {how.path} has the question of line {first} again (doc_id"
                f" {shown(document)}): a question counts once, so give a file of one task and one"
                " run."
            )
    if _has_choices(kept[0][1]):
        return _of_choices(how, kept, notes), [], notes
    rows: Rows = [_generated(sample, f"line {number} of {how.path}") for number, sample in kept]
    return None, rows, notes


def _has_choices(sample: Mapping[str, Any]) -> bool:
    """Check whether a sample has log-likelihoods of choices, and not a generated text."""
    responses = sample.get("filtered_resps") or sample.get("resps")
    if responses is None or "exact_match" in sample:
        return False
    while isinstance(responses, list) and len(responses) == 1:
        responses = responses[0]
    return not isinstance(responses, str)


def _of_choices(how: Request, kept: Sequence[tuple[int, Any]], notes: list[str]) -> Predictions:
    """Read the log-likelihoods and the targets, in the order of the documents."""
    if how.first_label:
        raise Unreadable(
            f"--first_label={how.first_label} is for files whose labels count from"
            f" {how.first_label}, and the choices of {how.path} count from 0: leave it out."
        )
    samples = []
    for number, sample in kept:
        where, document = f"line {number} of {how.path}", sample.get("doc_id")
        logits = _log_likelihoods(sample, where)
        place = document if isinstance(document, int) else number
        samples.append((place, logits, _target(sample, len(logits), where)))
    samples.sort(key=lambda sample: sample[0])
    most = max(len(logits) for _, logits, _ in samples)
    padded = [logits + [-math.inf] * (most - len(logits)) for _, logits, _ in samples]
    if fewer := sum(len(logits) < most for _, logits, _ in samples):
        notes = [
            f"{how.path}: {fewer:,} of {counted(len(samples), 'question')} have fewer than {most}"
            " choices; the missing ones have probability 0.",
            *notes,
        ]
    labels = np.array([label for _, _, label in samples])
    return Predictions(np.array(padded), labels, notes=tuple(notes))


def _generated(sample: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the number of a generated answer, and whether it is right, by column."""
    found = [name for name in (*_CORRECT, *sample.get("metrics", ())) if name in sample]
    if not found:
        raise Unreadable(f"{where} has no exact_match or other metric: add exact_match, 1 or 0.")
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
        " key confidence, score or logprobs to each line."
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
        keys = listed(list(map(str, sample)))
        raise Unreadable(f"{where} has no log-likelihoods of choices; it has the keys {keys}.")
    return values


def _target(sample: Mapping[str, Any], num_choices: int, where: str) -> int:
    """Return the number of the right choice, counted from 0, which may be given as text.

    A text of digits that is the text of another choice could be either, and is refused.
    """
    target = sample.get("target")
    text = str(target).strip()
    places = [place for place, choice in enumerate(_choices(sample)) if choice == text]
    number = int(text) if text.isdecimal() else next(iter(places), -1)
    unclear = len(places) > 1 and not text.isdecimal()
    unclear |= isinstance(target, str) and text.isdecimal() and bool({*places} - {number})
    if unclear or not 0 <= number < num_choices:
        why = (
            "which several of its choices could mean" if unclear else "which is none of its choices"
        )
        raise Unreadable(
            f"{where} has the target {text[:40]!r}, {why}.\nGive the number of the right choice,"
            " counted from 0 and without quotes."
        )
    return number


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
