"""Bad input: one to three lines that name the file, the place and the way out."""

import json

import numpy as np
import pytest

from calib_jax import report
from calib_jax.report.read import read_models

NUMBERS = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -3.0], [0.0, 4.0, 1.0]])
CHOICES = {"doc_id": 0, "filtered_resps": [[-1.0, "a"], [-2.0, "b"]]}
HEAD = "label,logit_0,logit_1\n"
STATED = "confidence,correct\n"
# The content of a table and of a line of JSON, and what the sentence says.
TABLES = {
    "no label": ("logit_0,logit_1\n1,2\n", "no label; it has logit_0, logit_1.*Give label"),
    "other name": ("target_class,a\n1,2\n", "no label; it has target_class, a"),
    "empty": ("", "it is empty"),
    "commas alone": (",,\n\n,,\n", "it is empty"),
    "no rows": (HEAD, "no examples, only a header"),
    "after blanks": ("\n,,\n" + HEAD + "0,1,2\n1,2\n", "line 5 of .* has 2 fields, not 3"),
    "blank label": (HEAD + "0,1,2\n,1,2\n", "label '' of .*example 1"),
    "long row": (HEAD + "0,1,2,3\n", "line 2 of .* has 4 fields, not 3"),
    "text": (HEAD + "0,1,2\n1,x,2\n", "column logit_0 of .* row 2 has 'x'"),
    "underscore": (HEAD + "0,1_0,2\n", "row 1 has '1_0'"),
    "decimal comma": ("label;logit_0;logit_1\n0;1,5;2\n", "has '1,5': write decimals with a point"),
    "unknown class": ("label,logit_cat,logit_dog\nfish,1,2\n", "fish of .*example 0, .* cat, dog"),
    "bare classes": ("label,cat,dog\n1,1,2\n", "no logit_0; it has label, cat, dog"),
    "duplicate": ("label,logit_0,logit_0\n0,1,2\n", "'logit_0' and 'logit_0' may both .*keep one"),
    "two labels": ("label,Labels,logit_0\n0,0,1\n", "may both be the label: keep one"),
    "gap": ("label,logit_0,logit_2\n0,1,2\n", "number all classes from 0"),
    "only class 0": ("label,probability_0\n0,1\n", "number all classes from 0"),
    "other columns": ("pred_a,target,pred_b\n1,0,2\n", "no logit_0; it has pred_a"),
    "one name": ("label,logit_cat\ndog,2.5\n", "label dog of .*none of not cat, cat"),
    "label of one column": ("label,logit\n0,1\n2,1\n", "label 2 of .* 2 classes 0 to 1"),
    "label": (HEAD + "0,1,2\n7,1,2\n", r"label 7 of .*example 1, .* 2 classes 0 to 1"),
    "beyond 64 bits": (HEAD + f"{10**30},1,2\n", "label 10+ of .*example 0"),
    "from 1": (HEAD + "1,1,2\n2,1,2\n", "from 1 to 2: give --first_label=1"),
    "quote": ('label,logit_0,logit_1,group\n0,1,2,"a\n1,1,2,b\n', "unexpected end of data"),
    "separator": ("label|logit_0\n1|2\n", "it has label|logit_0.*between commas, tabs"),
    "no outcome": ("confidence,answer\n.5,1\n", "has no correct; it has confidence, answer"),
    "no confidence": ("correct,answer\n1,1\n", "has no confidence; .*or score,correct"),
    "grades": (STATED + "12,1\n20,1\n5,0\n", "5 to 20.* name the column score"),
    "mixed": (STATED + ".8,1\n85,1\n90,0\n70,1\n", "1 of 4 are between 0 and 1: fractions and"),
    "few percent": (STATED + "30,1\n1,0\n1,0\n", r"1 of 3 are outside \[0, 1\]"),
    "above 1": (STATED + "1.5,1\n.5,0\n", r"1 of 2 are outside \[0, 1\]"),
    "beyond 100": (STATED + "100.5,1\n50,0\n", r"2 of 2 are outside \[0, 1\]"),
    "negative": (STATED + "-3,1\n", r"are outside \[0, 1\]"),
    "half right": (STATED + ".5,.5\n", "correct .5 of .*example 0, .*true or false"),
    "empty cell": (STATED + ",1\n", "must hold finite numbers: row 1 has ''"),
    "two near names": ("confidence,correct,question_id,question_no\n.5,1,a,b\n", "may both be"),
    "escapes": ("label,\x1b[2J,b\nx,1,2\n", r"\\x1b\[2J"),
}
GENERATED = {"doc_id": 0, "resps": [["4"]], "filtered_resps": ["4"], "exact_match": 1}
LINES = {
    "no JSON": ('{"label": 0', "line 1 of .* a JSON object: Expecting"),
    "no object": ("[1]", "give one JSON object for each"),
    "other names": ('{"text": 1, "label": 2}', "no logits; it has text, label.\nGive labels"),
    "one option": ('{"probabilities": {"a": 1}, "label": "a"}', "give two numbers or more"),
    "twice": ('{"logits": [1, 2, 3], "options": ["a", "b", "a"], "label": "b"}', "its options: "),
    "no option": ('{"probabilities": {"a": 0.5, "b": 0.5}, "label": "c"}', "its options: a, b"),
    "no target": (json.dumps(CHOICES | {"target": "7"}), "line 1 of .* is none of its choices"),
    "no scored sample": ('{"resps": [["4"]], "filtered_resps": ["4"]}', "has no exact_match"),
    "again": ("\n".join([json.dumps(CHOICES | {"target": 0})] * 2), "question of doc_id 0 again"),
    "no token": (json.dumps(GENERATED | {"logprobs": []}), "log-probabilities of no token"),
    "no number": (json.dumps(GENERATED), "no confidence, which lm-evaluation-harness does not "),
}
NAMES = {"labels": ["a", "b", "a"]}
ARRAYS = {
    "rows": ({"labels": [0, 1]}, r"labels of .* must have shape \(3,\)"),
    "one label": ({"labels": 1}, r"labels of .* must have shape \(3,\)"),
    "fractions": ({"labels": [0.5, 1, 2]}, "label 0.5 of .*example 0"),
    "names": (NAMES, "label a of .*none of the 3 classes 0 to 2"),
    "integers": ({"logits": NUMBERS.astype(int)}, "must be floating point"),
    "pickle": ({"groups": np.array([{}] * 3)}, "pickled objects, which are never read"),
    "weights": ({"weights": np.ones((3, 2))}, r"weights of .* must have shape \(3,\)"),
    "few names": ({"class_names": ["a", "b"]}, "2 class names and 3 classes"),
    "no name": ({**NAMES, "class_names": ["a", "c", "d"]}, "label b of .*example 1"),
    "same names": ({**NAMES, "class_names": ["a", "a", "b"]}, "two classes of one name"),
}
KINDS = [
    *(("csv", content, message) for content, message in TABLES.values()),
    *(("jsonl", content, message) for content, message in LINES.values()),
]


@pytest.mark.parametrize(("ending", "content", "message"), KINDS, ids=[*TABLES, *LINES])
def test_a_text_that_cannot_be_read(tmp_path, ending, content, message):
    path = tmp_path / f"run.{ending}"
    path.write_text(content)
    refused(path, message)


@pytest.mark.parametrize(("arrays", "message"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_do_not_fit(tmp_path, arrays, message):
    path = tmp_path / "run.npz"
    np.savez(path, **{"logits": NUMBERS, "labels": [0, 1, 2], **arrays})
    refused(path, message)


def refused(path, message):
    with pytest.raises(ValueError, match=f"(?s){message}") as caught:
        read_models(str(path))
    text = str(caught.value)
    assert path.name in text
    assert text.count("\n") <= 2
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("value", "weights"), [(np.nan, [1, 1, 1]), (1, [1, -1, 1]), (1, [0, 0, 0])]
)
def test_values_are_judged_when_they_are_scored(tmp_path, value, weights):
    numbers = NUMBERS.copy()
    numbers[1, 1] = value
    np.savez(tmp_path / "run.npz", logits=numbers, labels=[0, 1, 2], weights=weights)
    with pytest.raises(ValueError, match=r"run\.npz"):
        report.score_files(predictions=[str(tmp_path / "run.npz")])


@pytest.mark.parametrize("name", ["none.npz", "run.txt", "alone.npy", "folder.csv", "text.csv"])
def test_files_that_are_none(tmp_path, name):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "text.csv").write_text("label,cat,Äffchen\n0,1,2\n", encoding="latin-1")
    with pytest.raises((ValueError, FileNotFoundError), match=name):
        read_models(str(tmp_path / name))


@pytest.mark.parametrize("value", [10**400, {"a": [1]}, [[None]], "x"])
@pytest.mark.parametrize("key", ["logprobs", "filtered_resps", "resps", "metrics", "arguments"])
def test_any_json_in_a_sample_is_read_or_refused_in_a_sentence(tmp_path, key, value):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(GENERATED | {"logprobs": [-1.0], key: value}))
    error = "a.jsonl"
    try:
        read_models(str(path))
    except ValueError as raised:
        error = str(raised)
    assert "a.jsonl" in error


def test_a_long_question_takes_no_memory(tmp_path):
    """An array of text would pad each of 2,000 cells to 200,000 letters, 1.6 GB."""
    path = tmp_path / "a.jsonl"
    rows = [{"confidence": 0.5, "correct": 1, "question": f"q{k}"} for k in range(2000)]
    rows[0]["question"] = "q" * 200_000
    path.write_text("\n".join(map(json.dumps, rows)))
    (model,) = read_models(str(path))
    assert model.questions.dtype == object
    assert len(model.questions[0]) == 200_000
