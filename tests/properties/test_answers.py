"""Answers with one number each: their metrics, their calibration, and their files."""

import csv
import importlib
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from hypothesis import assume
from hypothesis import strategies as st

from calib_jax import calibrators, metrics, report
from calib_jax.core import texts
from calib_jax.report.reading import answer_files

from .cases import few_and_many
from .test_statistics import SEEDS, confidences

NAMES = ("accuracy", "error", "mean_confidence", "signed_gap", "brier", "nll", "ece", "mce")


@jax.jit
def of_metrics(confidence, correct, weights):
    stated = metrics.Stated(confidence, correct)
    return {name: getattr(metrics, name)(stated, weights=weights) for name in NAMES}


def by_loops(confidence, correct, weights):
    """The same in float64, from the definitions for one event; bins are (lo, hi]."""
    edges = np.linspace(0, 1, 16, dtype=np.float32)
    bins = np.array([sum(c > edge for edge in edges[1:-1]) for c in confidence])
    c, y, w = (np.float64(column) for column in (confidence, correct, weights))
    w = w / w.sum()
    gaps = [abs(np.sum((w * (c - y))[bins == b])) for b in range(15)]
    sizes = [np.sum(w[bins == b]) for b in range(15)]
    with np.errstate(divide="ignore"):
        log_true = np.log(np.where(y == 1, c, 1 - c))
    return {
        **{"accuracy": w @ y, "error": 1 - w @ y, "mean_confidence": w @ c},
        **{"signed_gap": w @ c - w @ y, "brier": w @ (c - y) ** 2},
        "nll": -(w[w > 0] @ log_true[w > 0]),
        "ece": sum(gaps),
        "mce": max(gap / size for gap, size in zip(gaps, sizes, strict=True) if size > 0),
    }


@few_and_many(
    {"seed": SEEDS, "rows": st.just(20)}, {"seed": SEEDS, "rows": st.sampled_from((1, 2, 20, 50))}
)
def TestMetricsOfStatedConfidences(seed: int, rows: int) -> None:
    """Values are those of loops, with ties, edges, absent rows and confidences of 0 and 1."""
    random = np.random.default_rng(seed)
    confidence = confidences(seed, rows)
    correct = random.random(rows) < random.choice([0.1, 0.5, 0.9])
    weights = random.choice([0, 1, 1, 2, 0.5], rows).astype(np.float32)
    weights[random.integers(rows)] = 1
    actual = of_metrics(confidence, correct, weights)
    for name, wanted in by_loops(confidence, correct, weights).items():
        np.testing.assert_allclose(actual[name], wanted, rtol=2e-5, atol=2e-6, err_msg=name)


RISING = {
    "the same": lambda s: s,
    "a line": lambda s: 4 * s - 20,
    "a cube": lambda s: s**3,
    "a probability": lambda s: 1 / (1 + np.exp(-s)),
}


def of_scores(score, correct):
    params = calibrators.isotonic.fit(calibrators.Scored(jnp.asarray(score), correct))
    return np.asarray(calibrators.isotonic.apply(params, jnp.asarray(score)))


@few_and_many(
    {"seed": SEEDS, "rows": st.just(20)}, {"seed": SEEDS, "rows": st.sampled_from((3, 20, 50))}
)
def TestScoresHaveNoScale(seed: int, rows: int) -> None:
    """Isotonic probabilities are those of SciPy, whatever rising function the scores went through.

    They keep the share of right answers.
    """
    random = np.random.default_rng(seed)
    score = random.integers(-5, 6, rows).astype(np.float32)
    correct = random.random(rows) < 1 / (1 + np.exp(-score * random.choice([-1, 0, 1])))
    assume(0 < correct.sum() < rows)
    values, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    shares = np.bincount(group, correct) / counts
    wanted = scipy.optimize.isotonic_regression(shares, weights=counts).x[group]
    assert len(values) > 1 or np.allclose(wanted, correct.mean())
    for name, change in RISING.items():
        actual = of_scores(change(score).astype(np.float32), correct)
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(actual.mean(), correct.mean(), rtol=1e-5)


# --------------------------------------------------------------------------------------------
# Files.

# Any text but surrogates, which no file holds, and NUL, which NumPy drops at the end of a text.
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=9)
NAMED = TEXT.map(str.strip)
RIGHT = st.sampled_from((True, False))


def columns_of(rows, confidence, *, percent):
    names = ("question", "model", "group", "correct")
    columns = {name: [row[k] for row in rows] for k, name in enumerate(names)}
    columns["confidence"] = confidence
    if percent:  # of texts, so that every format has the same digits
        columns["confidence"] = [f"{100 * c:.6f} %" for c in confidence]
    return columns


def write(folder, ending, columns):
    path = pathlib.Path(folder, f"answers.{ending}")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if ending == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, columns)
            table.writeheader()
            table.writerows(rows)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "npz":
        np.savez(path, **{name: np.array(column) for name, column in columns.items()})
    else:
        arrow = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.parquet").write_table(arrow.table(columns), path)
    return str(path)


@few_and_many(
    {"rows": st.lists(st.tuples(NAMED, NAMED, NAMED, RIGHT), min_size=1, max_size=6)}
    | {"seed": SEEDS, "percent": st.booleans()},
    {"rows": st.lists(st.tuples(NAMED, NAMED, NAMED, RIGHT), min_size=1, max_size=20)}
    | {"seed": SEEDS, "percent": st.booleans()},
)
def TestEveryFormatHoldsTheSameAnswers(rows: list, seed: int, percent: bool) -> None:
    """Names, outcomes and numbers come back as they were written, of each model in its order."""
    confidence = np.random.default_rng(seed).random(len(rows)).round(8).tolist()
    columns = columns_of(rows, confidence, percent=percent)
    fractions = [float(f"{100 * c:.6f}") / 100 for c in confidence] if percent else confidence
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("csv", "jsonl", "npz", "parquet"):
            models, notes = answer_files.read_answers(write(folder, ending, columns))
            assert [each.model for each in models] == list(dict.fromkeys(columns["model"]))
            assert all(texts.one_line(note) == note for note in notes), ending
            for each in models:
                of = [k for k, name in enumerate(columns["model"]) if name == each.model]
                for field in ("questions", "groups", "correct"):
                    column = columns[field.removesuffix("s")]
                    assert getattr(each, field).tolist() == [column[k] for k in of], ending
                assert each.values.tolist() == [fractions[k] for k in of], ending


@few_and_many(
    {"seed": SEEDS, "spelling": st.sampled_from(("numbers", "texts"))},
    {"seed": SEEDS, "spelling": st.sampled_from(("numbers", "texts"))},
)
def TestLogsOfMultipleChoice(seed: int, spelling: str) -> None:
    """Logits and targets of lm-evaluation-harness come back in the order of the documents."""
    random = np.random.default_rng(seed)
    counts = random.integers(2, 6, 7)
    logits = [random.standard_normal(count).tolist() for count in counts]
    targets = [int(random.integers(count)) for count in counts]
    as_written = (lambda z: [z, False]) if spelling == "numbers" else lambda z: [str(z), "False"]
    lines = [
        {
            "doc_id": k,
            "target": targets[k] if spelling == "numbers" else f" choice {targets[k]}",
            "filtered_resps": [as_written(z) for z in logits[k]],
            "arguments": [["context", f" choice {place}"] for place in range(counts[k])],
        }
        for k in random.permutation(7).tolist()
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "samples_x.jsonl")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = report.read_predictions(str(path))
    assert found.labels.tolist() == targets
    most = counts.max()
    wanted = [row + [-np.inf] * (most - len(row)) for row in logits]
    np.testing.assert_array_equal(found.logits, wanted)


@few_and_many(
    {"seed": SEEDS, "key": st.sampled_from(("confidence", "score", "logprobs", "logprob"))},
    {"seed": SEEDS, "key": st.sampled_from(("confidence", "score", "logprobs", "logprob"))},
)
def TestLogsOfGeneratedTexts(seed: int, key: str) -> None:
    """The number of an answer is its key, or the sum of the log-probabilities of its tokens."""
    random = np.random.default_rng(seed)
    numbers = [(-random.random(random.integers(1, 5))).tolist() for _ in range(5)]
    if key != "logprobs":
        numbers = [abs(row[0]) if key == "confidence" else row[0] for row in numbers]
    right = random.integers(0, 2, 5).tolist()
    lines = [
        {"doc_id": f"q{k}", "filter": kind, "resps": [["x"]], "exact_match": outcome, key: number}
        for kind in ("first", "second")
        for k, (outcome, number) in enumerate(zip(right, numbers, strict=True))
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "samples_x.jsonl")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (model,), _ = answer_files.read_answers(str(path))
    assert model.kind == ("confidence" if key == "confidence" else "score")
    sums = [np.sum(number) for number in numbers]
    np.testing.assert_allclose(model.values, sums, rtol=1e-14)
    assert model.correct.tolist() == right
    assert model.questions.tolist() == [f"q{k}" for k in range(5)]
