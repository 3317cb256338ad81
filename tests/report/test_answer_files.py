"""Files of answers: stated confidences, scores, several models in one file."""

import json
import zipfile

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit

from calib_jax import metrics, report
from calib_jax.report.read import read_models

QUICK = {"metrics": ["ece", "accuracy"], "resamples": 20}


def ece(confidence, correct, bins=15):
    """The ECE over bins (lo, hi], in float64."""
    confidence, correct = np.float64(confidence), np.float64(correct)
    index = np.ceil(np.float32(confidence) * np.float32(bins)).astype(int)
    gaps = [abs(np.sum((confidence - correct)[index == b])) for b in range(bins + 1)]
    return sum(gaps) / len(confidence)


def write(path, head, *columns):
    lines = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    path.write_text("\n".join([head, *lines]) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def too_sure():
    """240 answers stated at .7 and .3, of which 50 % and 10 % are right."""
    number = np.arange(120)
    return np.repeat([0.7, 0.3], 120), np.concatenate([number < 60, number < 12]).astype(int)


def test_answers_below_one_half_are_not_folded(tmp_path, too_sure):
    file = write(tmp_path / "answers.csv", "confidence,correct", *too_sure)
    scored = report.score_files(predictions=[file], **QUICK)
    np.testing.assert_allclose(scored.value("ece"), ece(*too_sure), rtol=1e-5)
    np.testing.assert_allclose(scored.value("ece"), 0.2, rtol=1e-4)
    assert scored.value("accuracy") == pytest.approx(0.3)
    row = next(row for row in scored.rows if row.metric == "ece")
    assert row.low > 0.1
    assert row.p_value < 0.06  # the least of 20 resamples is 1 / 21
    assert "\n240 answers; " in str(scored)
    assert scored.answers[0].startswith("50.0 % stated, 30.0 % right: ")


def models_file(path):
    """Three models answer 60 questions twice, in percent; model b skips every tenth question."""
    rng = np.random.default_rng(0)
    columns = {"question": [], "model": [], "confidence": [], "correct": []}
    for question in rng.permutation(60):
        for model, bias in (("a", 25), ("b", 5), ("c", 15)):
            for _ in range(0 if model == "b" and question % 10 == 0 else 2):
                stated = int(rng.integers(20, 70))
                row = f"q{question}", model, stated + bias, rng.random() < stated / 100
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
    order = rng.permutation(len(columns["question"]))
    arrays = {name: np.array(column)[order] for name, column in columns.items()}
    return write(path, ",".join(arrays), *arrays.values()), arrays


@pytest.mark.slow
def test_models_in_one_file_are_compared_on_the_questions_they_share(tmp_path):
    file, arrays = models_file(tmp_path / "models.csv")
    scored = report.score_files(predictions=[file], **QUICK)
    shared = ~np.isin(arrays["question"], [f"q{k}" for k in range(0, 60, 10)])
    first = arrays["model"][0]
    values = {}
    for model in "abc":
        rows = shared & (arrays["model"] == model)
        values[model] = ece(arrays["confidence"][rows] / 100, arrays["correct"][rows])
        np.testing.assert_allclose(scored.value("ece", model), values[model], rtol=1e-4)
    of_ece = [change for change in scored.changes if change.metric == "ece"]
    assert len(of_ece) == 3
    assert {change.before for change in of_ece[:2]} == {first}
    for change in of_ece:
        difference = values[change.after] - values[change.before]
        np.testing.assert_allclose(change.value, difference, atol=1e-5)
    tested = [c for c in scored.changes if c.metric.startswith("squared_")]
    p = sorted(change.p_value for change in tested)
    assert min(change.p_holm for change in tested) == pytest.approx(min(1, 3 * p[0]))
    assert scored.settings["clusters"] == 54
    text = scored._repr_markdown_()
    assert "all pairs, after" in text
    assert text.count("read as percent, divided by 100") == 3
    assert "Compared on the 54 questions that all models share: answers left out: 12 of" in text


@pytest.fixture(scope="module")
def grades():
    """Grades of 1 to 10 of 200 answers, and whether each is right."""
    grade = np.repeat(np.arange(1, 11), 20)
    correct = np.tile(np.arange(20), 10) < grade + 5
    return grade, correct.astype(int)


def test_a_judge_s_grades_are_calibrated(tmp_path, grades):
    """Isotonic regression of grades whose shares rise states these shares."""
    grade, correct = grades
    fit_on = write(tmp_path / "fit.csv", "score,correct", grade, correct)
    other = np.random.default_rng(0).random(200) < grade / 12
    file = write(tmp_path / "judge.csv", "score,correct", grade, other.astype(int))
    scored = report.score_files(predictions=[file], calibrate="isotonic", fit_on=[fit_on], **QUICK)
    stated = (grade + 5) / 20
    np.testing.assert_allclose(scored.value("ece", "isotonic"), ece(stated, other), atol=1e-5)
    assert "isotonic fitted on 200 other examples" in str(scored)
    assert scored.answers[0].startswith("isotonic: 52.5 % stated")
    with pytest.raises(ValueError, match="a score is no probability: give calibrate"):
        report.score_files(predictions=[file], **QUICK)
    with pytest.raises(ValueError, match="200 of 200 scored answers are also among"):
        report.score_files(predictions=[file], calibrate="isotonic", fit_on=[file], **QUICK)


def test_cross_fitting_of_answers_never_sees_what_it_scores(grades):
    """Folds of clusters: each fold is calibrated by a fit to the others."""
    grade, correct = grades
    confidence = np.float32(grade / 12)
    clusters = np.arange(200) // 2
    how = {"calibrate": "platt", "cross_fit": 2, "clusters": clusters, "num_resamples": 20}
    scored = report.score(metrics.Stated(confidence, correct), metrics=["brier", "auroc"], **how)
    fold = np.random.default_rng(0).permutation(100)[clusters] % 2
    odds, calibrated = logit(confidence), np.zeros(200)

    def nll(params, kept):
        return np.mean(np.logaddexp(0, (1 - 2 * correct) * (params[0] * odds + params[1]))[kept])

    for k in range(2):
        slope, intercept = minimize(nll, [1.0, 0.0], fold != k).x
        calibrated[fold == k] = expit(slope * odds + intercept)[fold == k]
    wanted = np.mean((calibrated - correct) ** 2)
    np.testing.assert_allclose(scored.value("brier", "platt"), wanted, rtol=1e-4)
    above = np.sign(np.subtract.outer(calibrated[correct == 1], calibrated[correct == 0]))
    np.testing.assert_allclose(scored.value("auroc", "platt"), np.mean(above + 1) / 2, atol=1e-4)


def test_wrong_answers_at_confidence_1_are_named():
    few = metrics.Stated([1.0, 1.0, 0.5, 0.25], [True, False, True, False])
    scored = report.score(few, num_resamples=20, threshold_for="error:0.75")
    assert "NLL is left out: it is infinite, because some answers are wrong" in scored.notes[0]
    assert "nll" not in {row.metric for row in scored.rows}
    assert scored.tables[0].rows[1][4] == "28 more rows like these would be needed"


def read(path):
    (model,) = read_models(str(path))
    return model, [*model.notes]


def test_tables_arrays_and_json_lines_hold_the_same_answers(tmp_path):
    confidence, correct = [0.5, 0.25, 1.0], [True, False, True]
    write(tmp_path / "a.csv", "Confidence,correct,question,text", confidence, correct, "xyx", "abc")
    columns = {"confidence": confidence, "correct": correct, "question": list("xyx")}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    np.savez(tmp_path / "a.npz", **columns)
    for ending in ("csv", "jsonl", "npz"):
        model, notes = read(tmp_path / f"a.{ending}")
        assert model.kind == "confidence"
        assert model.logits.tolist() == confidence
        assert model.labels.tolist() == [1, 0, 1]
        assert model.questions.tolist() == ["x", "y", "x"]
        assert len(notes) == (ending == "csv")
    assert notes == []


def test_generating_tasks_of_lm_evaluation_harness(tmp_path):
    """The first filter is read; the sum of the log-probabilities of the tokens is the score."""
    path = tmp_path / "samples_gsm8k.jsonl"
    line = {"target": "4", "resps": [["It is 4"]], "filtered_resps": ["4"]}
    lines = [
        line | {"doc_id": k, "filter": kind, "exact_match": float(k == 0 or kind != "strict-match")}
        for k in range(2)
        for kind in ("strict-match", "flexible-extract")
    ]

    def save(**more):
        path.write_text("\n".join(json.dumps(line | more) for line in lines))

    save(logprobs=[[-0.5, -0.25]])
    model, notes = read(path)
    assert (model.kind, model.logits.tolist()) == ("score", [-0.75, -0.75])
    assert (model.labels.tolist(), model.questions.tolist()) == ([1, 0], ["0", "1"])
    assert notes == [f"{path}: the filter strict-match is read, and not flexible-extract."]
    path.write_text(json.dumps(lines[0] | {"confidence": 0.5}))
    model, notes = read(path)
    assert (model.kind, notes) == ("confidence", [])


def inspect_log(**more):
    """Return a log of Inspect: two epochs of three questions, of which one sample failed."""
    values = {(1, 1): "C", (1, 2): "I", (2, 1): 1.0, (2, 2): False, (3, 1): "N"}
    samples = []
    for (number, epoch), value in values.items():
        score = {"value": value, "metadata": {"confidence": number / 4}}
        tokens = {"content": [{"logprob": -0.5}, {"logprob": -0.25 * epoch}]}
        sample = {"id": number, "epoch": epoch, "scores": {"match": score}}
        samples.append(sample | {"output": {"choices": [{"logprobs": tokens}]}} | more)
    failed = {"id": 3, "epoch": 2, "output": {"choices": []}, "error": {"message": "timeout"}}
    header = {"version": 2, "status": "success", "eval": {"task": "sums", "model": "openai/gpt"}}
    return header, [*samples, failed]


def save_inspect(path, header, samples):
    if path.suffix == ".json":
        path.write_text(json.dumps(header | {"samples": samples}))
        return path
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_journal/start.json", "{}")
        for sample in samples:
            name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
            archive.writestr(name, json.dumps(sample))
        archive.writestr("header.json", json.dumps(header))
    return path


@pytest.mark.parametrize("ending", ["json", "eval"])
def test_logs_of_inspect(tmp_path, ending):
    """Epochs are answers to one question; a sample without a score is left out."""
    path = save_inspect(tmp_path / f"log.{ending}", *inspect_log())
    model, notes = read(path)
    assert (model.model, model.kind) == ("openai/gpt", "confidence")
    assert model.logits.tolist() == [0.25, 0.25, 0.5, 0.5, 0.75]
    assert model.labels.tolist() == [1, 0, 1, 0, 0]
    assert model.questions.tolist() == ["1", "1", "2", "2", "3"]
    assert notes == [f"{path}: 1 sample without a score left out."]
    scored = report.score_files(predictions=[str(path)], **QUICK)
    assert next(row.value for row in scored.rows if row.metric == "accuracy") == pytest.approx(0.4)
    assert scored.settings["clusters"] == 3
    unstated = {"match": {"value": "C"}, "other": {"value": 0.5}}
    save_inspect(path, *inspect_log(scores=unstated))
    model, notes = read(path)
    assert (model.kind, model.logits.tolist()) == ("score", [-0.75, -1.0, -0.75, -1.0, -0.75])
    assert notes[0] == f"{path}: the scorer match is read, and not other."
