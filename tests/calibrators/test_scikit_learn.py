"""Calibrators as estimators of scikit-learn, and the error where it is missing."""

import importlib
import pickle
import sys
import warnings

import numpy as np
import pytest

from calib_jax import calibrators

MODULE = "calib_jax.calibrators.scikit_learn"


def test_without_scikit_learn_the_error_has_the_pip_command(monkeypatch):
    for name in ("sklearn", "sklearn.base"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'calib_jax\[sklearn\]'"):
        importlib.import_module(MODULE)
    assert "scikit_learn" not in calibrators.catalogue()


@pytest.fixture
def estimators():
    """Import the module, which needs scikit-learn."""
    pytest.importorskip("sklearn")
    return importlib.import_module(MODULE)


def examples(number=120):
    """Three overlapping classes, named, in two dimensions."""
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=number)
    centers = np.array([[0, 0], [1, 2], [2, 0]])
    names = np.array(["cat", "dog", "owl"])
    return centers[labels] + generator.standard_normal((number, 2)), names[labels], labels


@pytest.mark.thorough
def test_probabilities_are_those_of_the_steps_by_hand(estimators):
    """Cross-validated logits, a temperature, and the classifier on all examples."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    inputs, names, labels = examples()
    classifier = estimators.CalibratedClassifier(LogisticRegression(), cv=3).fit(inputs, names)
    held_out = cross_val_predict(
        LogisticRegression(), inputs, labels, cv=3, method="decision_function"
    )
    temperature = calibrators.temperature.fit(held_out, labels).temperature
    # It is the only classifier here whose decision function is the logarithm of its softmax.
    scores = LogisticRegression().fit(inputs, labels).decision_function(inputs)
    weights = np.exp(scores / np.float64(temperature))
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(classifier.predict_proba(inputs), expected, atol=1e-5)
    np.testing.assert_array_equal(
        classifier.predict(inputs), classifier.classes_[expected.argmax(1)]
    )
    copy = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copy.predict_proba(inputs), classifier.predict_proba(inputs))


@pytest.mark.thorough
def test_a_frozen_classifier_is_only_calibrated(estimators):
    from sklearn.frozen import FrozenEstimator
    from sklearn.svm import LinearSVC

    inputs, names, labels = examples()
    machine = LinearSVC(random_state=0).fit(inputs[:60], names[:60])
    classifier = estimators.CalibratedClassifier(FrozenEstimator(machine), method="vector")
    classifier.fit(inputs[60:], names[60:])
    bare = estimators.Calibrator("vector").fit(machine.decision_function(inputs[60:]), labels[60:])
    scores = machine.decision_function(inputs)
    # Folds reorder the examples, so float32 sums differ.
    np.testing.assert_allclose(
        classifier.predict_proba(inputs), bare.predict_proba(scores), atol=1e-4
    )
    with pytest.raises(ValueError, match="give examples of the same classes"):
        classifier.fit(inputs[names != "cat"], names[names != "cat"])


@pytest.mark.thorough
def test_a_calibrator_takes_numbers_of_columns(estimators):
    logits, _, labels = examples()
    bare = estimators.Calibrator().fit(np.hstack([logits, logits[:, :1]]), labels)
    assert bare.params_.state.name in ("converged", "no_optimum")
    assert bare.predict_proba(np.zeros((1, 3)))[0] == pytest.approx([1 / 3] * 3)
    with pytest.raises(ValueError, match="numbers of the classes, integers, got float64"):
        bare.fit(logits, labels.astype(float))
    with pytest.raises(ValueError, match="did you mean 'vector'"):
        estimators.Calibrator("vectr").fit(logits, labels % 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["CalibratedClassifier", "Calibrator"])
def test_the_checks_of_scikit_learn_pass(kind, estimators):
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are skipped
        results = check_estimator(getattr(estimators, kind)(), on_fail=None, on_skip=None)
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    assert failed == (set(estimators.EXPECTED_FAILURES) if kind == "Calibrator" else set())
    assert sum(result["status"] == "passed" for result in results) > 40


def test_scores_of_pairs_of_classes_are_refused(estimators):
    """Three classes have three pairs, so their number alone tells nothing."""
    from sklearn.linear_model import LinearRegression
    from sklearn.svm import SVC

    inputs, _, labels = examples()
    pairs = SVC(decision_function_shape="ovo")
    with pytest.raises(ValueError, match=r'SVC must score each of the 3 classes, .*"ovr"'):
        estimators.CalibratedClassifier(pairs).fit(inputs, labels)
    with pytest.raises(TypeError, match="CalibratedClassifier needs a classifier, got Linear"):
        estimators.CalibratedClassifier(LinearRegression()).fit(inputs, labels)
