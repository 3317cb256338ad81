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

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.report.predictions import counted, shown
from calib_jax.report.roles import Request

# Keys of a generating task: whether the answer is right, and its log-probability.
_CORRECT = ("exact_match", "acc")
_LOG_PROBABILITIES = ("logprobs", "logprob", "cumulative_logprob")
_KIND = "a sample of lm-evaluation-harness"


def is_logged(sample: Mapping[str, Any]) -> bool:
    """Check whether the harness wrote a line; others are plain JSONL."""
    return "resps" in sample or "filtered_resps" in sample


def examples(
    how: Request, samples: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the columns `logits` and `label`, or those of generated answers; and notes."""
    filters = list(dict.fromkeys(str(sample.get("filter", "none")) for sample in samples))
    notes = [f"{how.path}: the filter {filters[0]} is read, and not {', '.join(filters[1:])}."]
    notes = notes if len(filters) > 1 else []
    read = _chosen if _has_choices(samples[0]) else _generated
    rows: list[dict[str, Any]] = []
    order: list[int] = []
    seen: dict[str, int] = {}
    for number, sample in enumerate(samples, start=1):
        if str(sample.get("filter", "none")) != filters[0]:
            continue
        document = sample.get("doc_id", f"line {number}")
        if (first := seen.setdefault(str(document), number)) != number:
            raise Unreadable(
                f"line {number} of {how.path} has the question of line {first} again (doc_id"
                f" {shown(str(document))}): a question counts once, so give a file of one task and"
                " one run."
            )
        with reading.guard(f"line {number} of {how.path}", _KIND, "mend the line", library=True):
            rows.append(read(sample))
        order.append(document if isinstance(document, int) else number)
    if read is _generated:
        return rows, notes
    rows = [rows[place] for place in sorted(range(len(rows)), key=order.__getitem__)]
    most = max(len(row["logits"]) for row in rows)
    if fewer := [row for row in rows if len(row["logits"]) < most]:
        notes.insert(
            0,
            f"{how.path}: {len(fewer):,} of {counted(len(rows), 'question')} have fewer than"
            f" {most} choices; the missing ones have probability 0.",
        )
    for row in rows:
        row["logits"] += [-math.inf] * (most - len(row["logits"]))
        row["label"] += how.first_label
    return rows, notes


def _has_choices(sample: Mapping[str, Any]) -> bool:
    """Check whether a sample has log-likelihoods of choices, and not a generated text."""
    responses = sample.get("filtered_resps") or sample.get("resps")
    if responses is None or "exact_match" in sample:
        return False
    while isinstance(responses, list) and len(responses) == 1:
        responses = responses[0]
    return not isinstance(responses, str)


def _chosen(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-likelihoods of the choices, and the number of the right one, from 0."""
    responses = sample.get("filtered_resps") or [response[0] for response in sample["resps"]]
    logits = [float(value) for value, _greedy in responses]  # older versions write texts
    if len(logits) < 2:
        raise ValueError("it has no log-likelihoods of several choices")
    target = sample["target"]
    text = str(target).strip()
    # A text of digits that is the text of another choice could be either.
    places = {k for k, choice in enumerate(_texts(sample)) if choice == text}
    if text.isdecimal():
        places = {int(text)} | (places if isinstance(target, str) else set())
    if len(places) != 1 or not places <= {*range(len(logits))}:
        what = "could mean several of its choices" if len(places) > 1 else "is none of its choices"
        raise ValueError(
            f"its target {shown(text)!r} {what}: give the number of the right choice, counted from"
            " 0 and without quotes"
        )
    return {"logits": logits, "label": places.pop()}


def _texts(sample: Mapping[str, Any]) -> list[str]:
    """List the texts of the choices: the second argument of each request."""
    arguments = sample.get("arguments") or []
    requests = list(arguments.values()) if isinstance(arguments, Mapping) else arguments
    both = [list(each.values()) if isinstance(each, Mapping) else each for each in requests]
    return [str(each[1]).strip() for each in both]


def _generated(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of a generated answer, and whether it is right, by column."""
    found = [name for name in (*_CORRECT, *sample.get("metrics", ())) if name in sample]
    if not found:
        raise ValueError("it has no exact_match or other metric: add exact_match, 1 or 0")
    cells = {"correct": sample[found[0]]}
    if (document := sample.get("doc_id")) is not None:
        cells["question"] = document
    for name in ("confidence", "score"):
        if name in sample:
            return {name: sample[name], **cells}
    for name in _LOG_PROBABILITIES:
        if name in sample:
            return {"score": total(sample[name]), **cells}
    raise ValueError(
        "it has no confidence, which lm-evaluation-harness does not save for generated texts: add a"
        " key confidence, score or logprobs to each line"
    )


def total(value: Any) -> float:
    """Return a log-probability, or the sum of those of the tokens of the first sample."""
    while isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]
    tokens = value if isinstance(value, list) else [value]
    if not tokens:  # a sum of nothing would be certainty
        raise ValueError("it has the log-probabilities of no token")
    return math.fsum(float(token) for token in tokens)
