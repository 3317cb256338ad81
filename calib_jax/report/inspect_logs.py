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
import math
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.report.harness import total_log_probability
from calib_jax.report.predictions import counted, listed, shown

_BYTES = 1 << 28  # of a member of an archive
_ARCHIVE_BYTES = 1 << 32  # of all samples of an archive, of which one at a time is in memory
_HEADERS = ("header.json", "_journal/start.json")
_CORRECT = {"C": 1, "I": 0, "N": 0}


def answers(path: pathlib.Path, log: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the columns `confidence` or `score`, `correct`, `question` and `model`; and notes.

    Args:
      path: the path of the log, for messages.
      log: its content; `samples` may be an iterator.
    """
    if not isinstance(log.get("eval"), Mapping) or isinstance(log.get("samples"), str | None):
        raise Unreadable(f"{path} is no evaluation log of Inspect with samples.")
    model = _inside(log, "eval", "model")
    rows: list[dict[str, Any]] = []
    scorers: list[str] = []
    number = 0
    for number, sample in enumerate(log["samples"], start=1):
        scores = _inside(sample, "scores")
        if not isinstance(scores, Mapping) or not scores:
            continue
        scorers = scorers or list(scores)
        score = scores.get(scorers[0])
        value = _inside(score, "value")
        if value is None or (isinstance(value, float) and math.isnan(value)):  # not scored
            continue
        question = _inside(sample, "id")
        where = f"sample {shown(str(question))} of {path}"
        rows.append(
            {
                **_number(sample, score, where),
                "correct": _CORRECT.get(value, value) if isinstance(value, str) else value,
                "question": number if question is None else question,
                "model": model if isinstance(model, str) else "",
            }
        )
    if not rows:
        raise Unreadable(f"{path} has no samples with a score.")
    if len({next(iter(row)) for row in rows}) > 1:
        raise Unreadable(f"{path} has a confidence in some samples only: give one to each.")
    notes = []
    if len(scorers) > 1:
        first, *others = map(shown, scorers)
        notes.append(f"{path}: the scorer {first} is read, and not {listed(others)}.")
    if left := number - len(rows):
        notes.append(f"{path}: {counted(left, 'sample')} without a score left out.")
    return rows, notes


def _number(sample: Any, score: Any, where: str) -> dict[str, Any]:
    """Return the confidence or the score of an answer, by column."""
    confidence = _inside(score, "metadata", "confidence")
    if confidence is not None:
        return {"confidence": confidence}
    tokens = _inside(sample, "output", "choices", 0, "logprobs", "content")
    if isinstance(tokens, list) and tokens:
        values = [_inside(token, "logprob") for token in tokens]
        return {"score": total_log_probability(values, "logprobs", where)}
    raise Unreadable(
        f"{where} has no confidence.\nRun the task with --logprobs, or let the scorer put a"
        " number `confidence` into the metadata of its score."
    )


def _inside(value: Any, *path: str | int) -> Any:
    """Follow keys and indices into JSON; None where one of them is missing."""
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def archived(path: pathlib.Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the answers of an archive, one member after the other, within bounds of their sizes."""
    with reading.opened(path, "an evaluation log of Inspect") as file:
        archive = zipfile.ZipFile(file)
        members = {member.filename: member for member in archive.infolist()}
        header = next((members[name] for name in _HEADERS if name in members), None)
        samples = [m for n, m in members.items() if n.startswith("samples/") and n[-5:] == ".json"]
        if header is None or not samples:
            raise Unreadable(f"{path} is no evaluation log of Inspect with samples.")
        if sum(member.file_size for member in samples) > _ARCHIVE_BYTES:
            raise ValueError(f"its samples have more than {_ARCHIVE_BYTES:,} bytes")
        head = _member(archive, header)
        parsed: Iterator[Any] = (_member(archive, member) for member in samples)
        return answers(path, {"eval": _inside(head, "eval"), "samples": parsed})


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """Parse the JSON of a member."""
    if member.file_size > _BYTES:
        raise ValueError(
            f"a member has {member.file_size:,} bytes, and at most {_BYTES:,} are read"
        )
    return json.loads(archive.read(member))
