"""Read the logs of lm-evaluation-harness and of Inspect (inspect_ai of the UK AISI).

    lm_eval --model hf --model_args pretrained=NAME --tasks arc_easy --log_samples --output_path OUT

writes OUT/NAME/samples_arc_easy_DATE.jsonl, one JSON object for each question:

    {"doc_id": 0, "target": "2", "filtered_resps": [["-1.5", "False"], ["-0.5", "True"], ...],
     "resps": [[["-1.5", "False"]], ...], "arguments": ..., ...}

`filtered_resps` has the log-likelihood of each choice, and whether greedy decoding writes it.
`target` is the number of the right choice, or its text. Here the logits of a question are the
log-likelihoods of the choices, so the prediction equals the prediction of the harness's metric
`acc` (`acc_norm` divides by the length of a choice). If numbers of choices differ, the choices are
options of each row, and no classes. Of generated texts, the harness saves whether they are right,
and the user adds a confidence, a score or log-probabilities to each line.

    inspect eval task.py --model=NAME --logprobs

writes version 2 of the log format (inspect_ai 0.3), of which these keys are read:

    {"eval": {"model": "openai/gpt-4o-mini", ...},
     "samples": [{"id": 1, "epoch": 1,
                  "scores": {SCORER: {"value": "C", "metadata": {"confidence": 0.9}}},
                  "output": {"choices": [{"logprobs": {"content": [{"logprob": -0.1}, ...]}}]}}]}

A file .eval is a zip archive with one member samples/ID_epoch_N.json for each sample, and the rest
in header.json, or in _journal/start.json while the evaluation runs.

The first scorer of a log is read. "C" is right, "I" and "N" (no answer) are wrong; a log of other
values than 0 and 1, such as "P" for partial credit, is refused. The number of an answer is the
`confidence` in the metadata of its score, or else the sum of the log-probabilities of its tokens,
a score. All epochs of a sample have its id as their question. Samples without a score, such as
samples that ended in an error, are left out.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.report.columns import Request
from calib_jax.report.predictions import counted, listed, shown

_SAMPLE, _MEND = "a sample of lm-evaluation-harness", "mend the line"
_CORRECT = {"C": 1, "I": 0, "N": 0}
_ADVICE = "run the task with --logprobs, or put a number `confidence` into the score's metadata"

# Rows of a table, and sentences on how they were made.
Rows: TypeAlias = tuple[list[dict[str, Any]], list[str]]


def of_harness(how: Request, samples: Sequence[Mapping[str, Any]]) -> Rows:
    """Return the columns `logits` and `label`, or those of generated answers; and notes."""
    filters = list(dict.fromkeys(str(sample.get("filter", "none")) for sample in samples))
    others = f"{how.path}: the filter {filters[0]} is read, and not {', '.join(filters[1:])}."
    notes = [others] if len(filters) > 1 else []
    # Choices have log-likelihoods; a generated text has none.
    first = next(iter(_responses(samples[0])), "")
    of_choices = "exact_match" not in samples[0] and isinstance(first, list) and len(first) == 2
    rows: dict[Any, dict[str, Any]] = {}
    for number, sample in enumerate(samples, start=1):
        if str(sample.get("filter", "none")) != filters[0]:
            continue
        with reading.guard(f"line {number} of {how.path}", _SAMPLE, _MEND, library=True):
            document = sample.get("doc_id", f"line {number}")
            if document in rows:
                again = f"the question of doc_id {shown(str(document))} again"
                raise ValueError(f"it has {again}: give a file of one task and one run")
            rows[document] = _chosen(sample, how.first_label) if of_choices else _generated(sample)
    numbered = of_choices and all(isinstance(document, int) for document in rows)
    return [rows[document] for document in (sorted(rows) if numbered else rows)], notes


def _responses(sample: Mapping[str, Any]) -> Any:
    """Return a pair of the log-likelihood and the greedy flag for each choice, or a text."""
    given = sample.get("filtered_resps")
    return given or [response[0] for response in sample.get("resps") or () if response]


def _chosen(sample: Mapping[str, Any], first_label: int) -> dict[str, Any]:
    """Return the log-likelihoods of the choices, and the label of the right one."""
    logits = [float(value) for value, _greedy in _responses(sample)]  # or texts, in older versions
    if len(logits) < 2:
        raise ValueError("it has no log-likelihoods of several choices")
    target = sample["target"]
    text = str(target).strip()
    # The text of a choice is the second argument of its request. A text of digits that is the text
    # of another choice could be either.
    requests = enumerate(_listed(sample.get("arguments") or []))
    places = {k for k, request in requests if str(_listed(request)[1]).strip() == text}
    if text.isdecimal():
        places = {int(text)} | (places if isinstance(target, str) else set())
    if len(places) != 1 or not places <= {*range(len(logits))}:
        what = "could mean several of its choices" if len(places) > 1 else "is none of its choices"
        raise ValueError(f"its target {shown(text)!r} {what}: give the number of one, from 0 on")
    return {"logits": logits, "label": places.pop() + first_label}


def _listed(arguments: Any) -> list[Any]:
    """List arguments, which newer versions write by name."""
    return list(arguments.values() if isinstance(arguments, Mapping) else arguments)


def _generated(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of a generated answer, and whether it is right, by column."""
    found = [name for name in ("exact_match", "acc", *sample.get("metrics", ())) if name in sample]
    if not found:
        raise ValueError("it has no exact_match or other metric: add exact_match, 1 or 0")
    cells = {"correct": sample[found[0]]}
    if (document := sample.get("doc_id")) is not None:
        cells["question"] = document
    for name in ("confidence", "score", "logprobs", "logprob", "cumulative_logprob"):
        if name in sample:
            is_stated = name in ("confidence", "score")
            return ({name: sample[name]} if is_stated else {"score": _total(sample[name])}) | cells
    keys = "add a key confidence, score or logprobs to each line"
    raise ValueError(f"it has no confidence, which lm-evaluation-harness does not save: {keys}")


def _total(value: Any) -> float:
    """Return a log-probability, or the sum of those of the tokens of the first sample."""
    while isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]
    tokens = value if isinstance(value, list) else [value]
    if not tokens:  # a sum of nothing would be certainty
        raise ValueError("it has the log-probabilities of no token")
    return math.fsum(float(token) for token in tokens)


def of_inspect(path: pathlib.Path, log: Mapping[str, Any]) -> Rows:
    """Return the columns `confidence` or `score`, `correct`, `question` and `model`; and notes.

    Args:
      path: the path of the log, for messages.
      log: its content; `samples` may be an iterator.
    """
    if not isinstance(log.get("eval"), Mapping) or "samples" not in log:
        raise Unreadable(f"{path} is no evaluation log of Inspect with samples.")
    rows, scorers, number = list[dict[str, Any]](), list[str](), 0
    for number, sample in enumerate(log["samples"], start=1):
        where = f"sample {number:,} of {path}"
        with reading.guard(where, "an answer with a confidence", _ADVICE, library=True):
            scores = sample.get("scores") or {}
            scorers = scorers or list(scores)
            score = scores[scorers[0]] if scores else {"value": None}
            value = score["value"]
            if value is None or value != value:  # NaN
                continue
            answer = {"correct": _CORRECT.get(value, value) if isinstance(value, str) else value}
            answer |= {"question": sample.get("id", number), "model": log["eval"].get("model", "")}
            confidence = (score.get("metadata") or {}).get("confidence")
            if confidence is None:
                tokens = sample["output"]["choices"][0]["logprobs"]["content"]
                rows.append(answer | {"score": _total([token["logprob"] for token in tokens])})
            else:
                rows.append(answer | {"confidence": confidence})
    if not rows:
        raise Unreadable(f"{path} has no samples with a score.")
    left = number - len(rows)
    notes = [f"{path}: {counted(left, 'sample')} without a score left out."] if left else []
    if len(scorers) > 1:
        first, *others = map(shown, scorers)
        notes.insert(0, f"{path}: the scorer {first} is read, and not {listed(others)}.")
    return rows, notes


def archived(path: pathlib.Path) -> Rows:
    """Read the answers of an archive, one member after the other, within bounds of their sizes."""
    with reading.opened(path, "an evaluation log of Inspect") as file:
        archive = reading.archive(file)
        names = archive.namelist()
        header = [name for name in ("header.json", "_journal/start.json") if name in names]
        samples = [name for name in names if name.startswith("samples/") and name.endswith(".json")]
        head = json.loads(archive.read(header[0])) if header and samples else {}
        parsed = (json.loads(archive.read(name)) for name in samples)
        return of_inspect(path, {"eval": head.get("eval"), "samples": parsed})
