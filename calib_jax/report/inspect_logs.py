"""Read the evaluation logs of Inspect (inspect_ai of the UK AISI), in both of its formats.

    inspect eval task.py --model=NAME --logprobs

The schema is version 2 of the log format (inspect_ai 0.3), of which these keys are read:

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
import pathlib
from collections.abc import Mapping
from typing import Any

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.report.harness import total
from calib_jax.report.predictions import counted, listed, shown

_HEADERS = ("header.json", "_journal/start.json")
_CORRECT = {"C": 1, "I": 0, "N": 0}
_ADVICE = (
    "run the task with --logprobs, or let the scorer put a number `confidence` into the metadata of"
    " its score"
)


def answers(path: pathlib.Path, log: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the columns `confidence` or `score`, `correct`, `question` and `model`; and notes.

    Args:
      path: the path of the log, for messages.
      log: its content; `samples` may be an iterator.
    """
    if not isinstance(log.get("eval"), Mapping) or "samples" not in log:
        raise Unreadable(f"{path} is no evaluation log of Inspect with samples.")
    model = log["eval"].get("model", "")
    rows: list[dict[str, Any]] = []
    scorers: list[str] = []
    left = 0
    for number, sample in enumerate(log["samples"], start=1):
        scores = sample.get("scores") or {}
        scorers = scorers or list(scores)
        value = scores[scorers[0]]["value"] if scores else None
        if value is None or value != value:  # NaN
            left += 1
            continue
        question = sample.get("id", number)
        where = f"sample {shown(str(question))} of {path}"
        with reading.guard(where, "an answer with a confidence", _ADVICE, library=True):
            row = _number(sample, scores[scorers[0]])
        value = _CORRECT.get(value, value) if isinstance(value, str) else value
        rows.append(row | {"correct": value, "question": question, "model": model})
    if not rows:
        raise Unreadable(f"{path} has no samples with a score.")
    notes = []
    if len(scorers) > 1:
        first, *others = map(shown, scorers)
        notes.append(f"{path}: the scorer {first} is read, and not {listed(others)}.")
    if left:
        notes.append(f"{path}: {counted(left, 'sample')} without a score left out.")
    return rows, notes


def _number(sample: Mapping[str, Any], score: Mapping[str, Any]) -> dict[str, Any]:
    """Return the confidence or the score of an answer, by column."""
    confidence = (score.get("metadata") or {}).get("confidence")
    if confidence is not None:
        return {"confidence": confidence}
    tokens = sample["output"]["choices"][0]["logprobs"]["content"]
    return {"score": total([token["logprob"] for token in tokens])}


def archived(path: pathlib.Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the answers of an archive, one member after the other, within bounds of their sizes."""
    with reading.opened(path, "an evaluation log of Inspect") as file:
        archive = reading.archive(file)
        names = archive.namelist()
        header = [name for name in _HEADERS if name in names]
        samples = [name for name in names if name.startswith("samples/") and name.endswith(".json")]
        if not header or not samples:
            raise Unreadable(f"{path} is no evaluation log of Inspect with samples.")
        head = json.loads(archive.read(header[0]))
        parsed = (json.loads(archive.read(name)) for name in samples)
        return answers(path, {"eval": head["eval"], "samples": parsed})
