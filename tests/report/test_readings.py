"""Reports that a careful reader cannot misread: events, tests of what is shown, other examples."""

import ml_dtypes
import numpy as np
import pytest

from calib_jax import metrics, report
from calib_jax.report import predictions, results

QUICK = {"metrics": ["error", "ece", "signed_gap"], "num_resamples": 200}


def fraud(num_rows=1000, seed=0, shift=2.0):
    """Return probabilities of two classes that over-state the second one, and labels."""
    random = np.random.default_rng(seed)
    z = random.normal(-3.4, 4.0, num_rows)
    labels = (random.random(num_rows) < 1 / (1 + np.exp(-z))).astype(int)
    p = 1 / (1 + np.exp(-0.4 * z - shift))
    return np.stack([1 - p, p], axis=1), labels


@pytest.fixture(scope="module")
def binary():
    p, labels = fraud()
    return report.score(
        *(p, labels),
        **{"name": "forest", "compare": {"boost": fraud(shift=0.5)[0]}, "probabilities": True},
        **{"class_names": ["legit", "fraud"], "groups": labels > 0},
        **QUICK,
    )


def test_the_event_is_the_first_reading_of_two_classes(binary):
    p, labels = fraud()
    stated, observed = p[:, 1].mean(), labels.mean()
    assert stated - observed > 0.1  # over-stated, although the top label is under-stated
    (sentence,) = (line for line in binary.answers if line.startswith("forest: "))
    expected = f"{100 * stated:.1f} % stated, {100 * observed:.1f} % observed: too high by "
    expected += f"{100 * (stated - observed):.1f} points ["
    assert sentence.startswith(f"forest: P(fraud): {expected}")
    assert "Top label: " in sentence
    assert "unsure" not in sentence.partition("Top label")[0]
    names = [row.metric for row in binary.rows if row.predictions == "forest"]
    assert names.index("ece (class 1)") == names.index("ece") - 1
    index = np.ceil(15 * p[:, 1])
    gaps = [abs(np.sum((p[:, 1] - labels)[index == b])) / 1000 for b in range(16)]
    assert binary.value("ece (class 1)", "forest") == pytest.approx(sum(gaps), rel=1e-4)
    text = str(binary)
    assert "ece (fraud)" in text
    assert "\nece (top label)" in text
    (groups,) = (table for table in results.tables(binary) if table.title == "Groups")
    assert "ece (top label)" in groups.rows[0]
    assert "\nerror (top label)" not in text  # both readings share the decisions
    assert "Two classes have two readings: " in " ".join(binary.explanations)


def test_a_comparison_of_two_classes_is_about_the_event_with_its_sign(binary):
    line = binary.answers[-1]
    gaps = [100 * binary.value("signed_gap (class 1)", model) for model in ("boost", "forest")]
    assert f"signed_gap (fraud) differs by {gaps[0] - gaps[1]:.1f} points (p = " in line
    assert "ece (fraud)" in line


def test_figures_show_the_event_beside_the_top_label(binary):
    table = binary.event.reliability["forest"]
    stated = np.asarray(table.confidence)[np.asarray(table.weight) > 0]
    assert stated.min() < 0.5 < stated.max()
    pictures = report.pictures(binary)
    left, right = pictures["reliability"].axes[:2]
    assert [axes.get_ylabel() for axes in (left, right)] == ["observed", "accuracy"]
    assert "P(fraud)" in left.get_title(loc="left")
    assert "top label" in right.get_title(loc="left")
    assert "reliability_other" in pictures


def test_the_positive_class_may_be_the_first(tmp_path):
    p, labels = fraud()
    np.savez(tmp_path / "run.npz", probabilities=p, labels=labels, class_names=["legit", "fraud"])
    options = {"predictions": [str(tmp_path / "run.npz")], "metrics": QUICK["metrics"]}
    other = report.score_files(**options, positive="legit")
    assert "P(legit): " in other.answers[0]
    assert report.score_files(**options, positive="0").answers == other.answers
    second = report.score_files(**options, interval="basic")
    assert "intervals of ece (fraud), ece: noise" in second.notes[-1]
    assert other.value("ece (class 0)") == pytest.approx(second.value("ece (class 1)"), abs=0.02)
    assert report.score_files(**options, interval="basic", positive="1").answers == second.answers
    with pytest.raises(ValueError, match="positive must be one of legit, fraud"):
        report.score_files(**options, positive="scam")
    with pytest.raises(ValueError, match="positive is for two classes"):
        report.score(5 * np.eye(3)[labels], labels, positive="1")
    np.savez(tmp_path / "run.npz", probabilities=p, labels=labels + 1)  # the classes are 1 and 2
    from_1 = report.score_files(**options, first_label=1, positive="1")
    assert from_1.answers == [line.replace("legit", "1") for line in other.answers]


def test_cross_fitting_calibrates_every_model():
    random = np.random.default_rng(0)
    logits = random.standard_normal((200, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    options = {"calibrate": "temperature", "cross_fit": 2, "metrics": ["accuracy", "ece", "nll"]}
    options["weights"] = random.uniform(0.2, 3, 200)  # which cannot count copies
    scored = report.score(
        logits, labels, name="a", compare={"b": 5 * logits}, num_resamples=20, **options
    )
    assert [*scored.calibrators] == ["temperature of a", "temperature of b"]
    of_a = scored.value("nll", "temperature of a")  # T is 5 times as large for b
    assert scored.value("nll", "temperature of b") == pytest.approx(of_a, rel=1e-4)


def answers(path, seed, question="q"):
    random = np.random.default_rng(seed)
    p = random.random(200)
    right = random.random(200) < p
    lines = [f"{question}{k},{p[k]:.6f},{int(right[k])}" for k in range(200)]
    path.write_text("\n".join(["question,confidence,correct", *lines]) + "\n")
    return str(path)


def test_near_names_of_columns_are_taken_and_said(tmp_path):
    path = tmp_path / "answers.csv"
    rows = [f"q{k},{m},.{k},{k % 2}" for m in "ab" for k in (2, 3, 4) for _ in range(2)]
    path.write_text("\n".join(["question_id,model_name,confidence,is_correct", *rows]))
    scored = report.score_files(predictions=[str(path)], metrics=["ece"], resamples=20)
    assert [*scored.reliability] == ["a", "b"]
    assert scored.settings["clusters"] == 3
    assert "read as question: question_id" in " ".join(scored.notes)


def test_several_models_in_a_table_of_classes_are_compared_on_their_questions(tmp_path):
    path = tmp_path / "a.csv"
    orders = {"a": (0, 1, 2, 3), "b": (3, 0, 2, 1)}
    rows = [f"{k % 2},{k},1,q{k},{m}" for m, order in orders.items() for k in order]
    path.write_text("\n".join(["label,logit_0,logit_1,question,model_name", *rows]))
    scored = report.score_files(predictions=[str(path)], metrics=["accuracy"], resamples=20)
    assert [*scored.reliability] == ["a", "b"]
    mean = report.score_files(predictions=[str(path)], average=True, metrics=["nll"], resamples=20)
    assert [*mean.reliability] == ["mean of 2"]
    path.write_text("label,logit_0,logit_1,model_name\n0,1,0,a\n1,1,0,b\n")
    with pytest.raises(ValueError, match="a and b differ in the label of the same example"):
        report.score_files(predictions=[str(path)])


def overlapping(shared, scored=250, fitted=200):
    random = np.random.default_rng(0)
    logits = random.standard_normal((scored + fitted, 3)).astype(np.float32)
    labels = random.integers(3, size=len(logits))
    rows = np.concatenate([np.arange(shared), np.arange(scored, scored + fitted - shared)])
    offset = random.standard_normal((fitted, 1)).astype(np.float32)
    return (logits[:scored], labels[:scored]), (logits[rows] + offset, labels[rows])


def test_scored_rows_among_the_fitted_are_counted_and_many_are_refused():
    options = {"metrics": ["accuracy", "ece", "nll"], "num_resamples": 20}
    options["calibrate"] = "temperature"
    test, fit = overlapping(6)  # 3 % of the smaller set
    few = report.score(*test, fit_on=[each.tolist() for each in fit], **options)
    assert few.headlines[0].startswith("6 of 250 scored examples are also among the 200 of")
    assert str(few).startswith(few.headlines[0])
    test, fit = overlapping(7)
    with pytest.raises(ValueError, match="7 of 250 scored examples are also among"):
        report.score(*test, fit_on=fit, **options)


OF_ANSWERS = {"calibrate": "isotonic", "metrics": ["ece", "accuracy"]}


def test_equal_numbers_by_chance_are_no_overlap():
    """Confidences of ten values are equal in any two sets, and share no answer."""
    random = np.random.default_rng(0)

    def draw(num_rows):
        confidence = random.integers(1, 10, num_rows) / 10
        return metrics.Stated(confidence.tolist(), random.random(num_rows) < confidence)

    scored = report.score(draw(200), fit_on=draw(200), **OF_ANSWERS, num_resamples=20)
    assert scored.headlines == []
    for _ in range(20):  # a small fit alone knows its chance badly
        p = np.round(random.dirichlet([0.3] * 3, 1100), 2), random.integers(3, size=1100)
        sets = ((p[0][of], p[1][of], None) for of in (slice(1000), slice(1000, 1100)))
        assert predictions.shared_rows(*sets)[0] == 0


def test_questions_that_were_fitted_on_are_refused(tmp_path):
    scored = answers(tmp_path / "a.csv", 0)
    fitted = answers(tmp_path / "b.csv", 1, question="q1")  # q10 to q19, and q110 to q199
    options = {**OF_ANSWERS, "resamples": 20}
    with pytest.raises(ValueError, match="100 of 200 scored questions are also among"):
        report.score_files(predictions=[scored], fit_on=[fitted], **options)
    numbered = [answers(tmp_path / f"{k}.csv", k, question="") for k in range(2)]
    other = report.score_files(predictions=numbered[:1], fit_on=numbered[1:], **options)
    assert other.settings["clusters"] is None  # each question has one answer


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("num_classes", [2, 5, 1000])
def test_probabilities_of_sixteen_bits_are_probabilities(kind, num_classes):
    random = np.random.default_rng(0)
    z = 2 * random.standard_normal((121, num_classes))
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    p = p.astype(kind).astype(np.float32)
    assert num_classes == 2 or np.abs(p.sum(-1) - 1).max() > 1e-5
    p[7] = 0
    weights = np.arange(121) != 7
    rows = predictions.probability_rows(p, weights=weights)
    expected = p[weights] / p[weights].sum(-1, keepdims=True)
    np.testing.assert_allclose(rows[weights], expected, rtol=1e-5)
