"""Files that were read without an error and in another sense than meant, and files in the way."""

import json

import numpy as np
import pytest

from calib_jax import report
from calib_jax.report import predictions
from calib_jax.report.read import read_models, read_predictions


def written(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_numeric_columns_beside_named_classes_are_no_classes(tmp_path):
    head = "label,cat,dog,epoch,loss,prediction,example_id"
    file = written(tmp_path / "a.csv", head, "cat,2,1,7,0.3,1,104", "dog,0,1,7,0.1,1,230")
    contents = read_predictions(file)
    assert contents.class_names == ("cat", "dog")
    np.testing.assert_array_equal(contents.logits, [[2, 1], [0, 1]])
    assert "no label is epoch, loss, prediction, example_id: not scored" in contents.notes[-1]


def test_probabilities_that_sum_to_1_are_those_of_all_classes(tmp_path):
    file = written(tmp_path / "a.csv", "label,cat,dog,eel", "cat,.7,.2,.1", "dog,.1,.5,.4")
    contents = read_predictions(file, probabilities=True)
    assert contents.class_names == ("cat", "dog", "eel")


def test_a_column_of_true_and_false_is_no_class(tmp_path):
    file = written(tmp_path / "a.csv", "label,cat,dog,seen", "cat,2,1,True", "cat,0,1,False")
    contents = read_predictions(file)
    assert contents.class_names == ("cat", "dog")
    assert "columns ignored: seen" in contents.notes[0]


def test_probabilities_in_whole_numbers_are_read(tmp_path):
    lines = (json.dumps({"label": 0, "probabilities": p}) for p in ([75, 25], [30, 70]))
    for file, expected in (
        (written(tmp_path / "a.jsonl", *lines), [[0.75, 0.25], [0.3, 0.7]]),
        (written(tmp_path / "b.jsonl", '{"label": 1, "probabilities": [0, 1]}'), [[0, 1]]),
    ):
        np.testing.assert_allclose(read_predictions(file).logits, expected)


def test_answers_beside_a_confidence_may_be_texts(tmp_path):
    line = {"answers": {"a": "Paris"}, "confidence": 0.5, "correct": 1}
    contents = read_predictions(written(tmp_path / "a.jsonl", json.dumps(line)))
    np.testing.assert_array_equal(contents.logits, [0.5])


def test_labels_of_one_number_are_refused_by_their_shape(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.ones((3, 2)), labels=1)
    with pytest.raises(ValueError, match=r"labels of .* must have shape \(3,\)"):
        read_predictions(str(tmp_path / "a.npz"))


def test_no_log_probabilities_are_no_certainty(tmp_path):
    line = {"doc_id": 0, "resps": [["4"]], "filtered_resps": ["4"], "exact_match": 1}
    file = written(tmp_path / "a.jsonl", json.dumps(line | {"logprobs": []}))
    with pytest.raises(ValueError, match="log-probabilities of no token"):
        read_models(file)


@pytest.mark.parametrize("value", [10**400, {"a": [1]}, [[None]], "x"])
@pytest.mark.parametrize("key", ["logprobs", "filtered_resps", "resps", "metrics", "arguments"])
def test_any_json_in_a_sample_is_read_or_refused_in_a_sentence(tmp_path, key, value):
    line = {"doc_id": 0, "resps": [["4"]], "filtered_resps": ["4"], "exact_match": 1}
    file = written(tmp_path / "a.jsonl", json.dumps(line | {"logprobs": [-1.0], key: value}))
    error = ""
    try:
        read_models(file)
    except ValueError as raised:
        error = str(raised)
    assert not error or "a.jsonl" in error


def test_fractions_among_percent_are_refused(tmp_path):
    cells = ["0.8,1", "85,1", "90,0", "70,1"]
    file = written(tmp_path / "a.csv", "confidence,correct", *cells)
    with pytest.raises(ValueError, match="1 of 4 are between 0 and 1: fractions and percent may"):
        read_models(file)


def test_grades_up_to_20_are_no_percent(tmp_path):
    file = written(tmp_path / "a.csv", "confidence,correct", "12,1", "20,1", "5,0")
    with pytest.raises(ValueError, match="name the column score"):
        read_models(file)


def test_logits_with_a_large_offset_keep_their_digits():
    random = np.random.default_rng(0)
    logits = random.standard_normal((50, 3))
    expected = np.argmax(logits, axis=-1)
    for offset in (-1e6, 1e9):
        actual = np.asarray(predictions.as_logits(logits + offset))
        assert (actual.argmax(axis=-1) == expected).all()
        differences = logits - logits.max(axis=-1, keepdims=True)
        np.testing.assert_allclose(actual, differences, atol=1e-5)


def test_a_report_replaces_its_own_files_alone(tmp_path):
    random = np.random.default_rng(0)
    scored = report.score(
        random.standard_normal((30, 3)),
        random.integers(3, size=30),
        metrics=["accuracy"],
        num_resamples=20,
    )
    (tmp_path / ".mine.old.partial").mkdir()
    (tmp_path / ".mine.old.partial" / "work.txt").write_text("work")
    scored.save(tmp_path)
    scored.save(tmp_path)  # its own files
    assert (tmp_path / ".mine.old.partial" / "work.txt").read_text() == "work"
    other = tmp_path / "other"
    other.mkdir()
    (other / "report.md").write_text("my thesis")
    with pytest.raises(ValueError, match=r"report\.md is a file that no report wrote"):
        scored.save(other)
    assert [path.name for path in other.iterdir()] == ["report.md"]
    assert (other / "report.md").read_text() == "my thesis"
