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


def test_probabilities_are_those_of_the_steps_by_hand(estimators):
    """Cross-validated logits, a temperature, and the classifier on all examples."""
    from sklearn.base import BaseEstimator, ClassifierMixin
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

    class Shares(ClassifierMixin, BaseEstimator):
        """The same classifier, of which only probabilities are known."""

        def fit(self, inputs, labels):
            self.model_ = LogisticRegression().fit(inputs, labels)
            self.classes_ = self.model_.classes_
            return self

        def predict(self, inputs):
            return self.model_.predict(inputs)

        def predict_proba(self, inputs):
            return self.model_.predict_proba(inputs)

    shares = estimators.CalibratedClassifier(Shares(), cv=3).fit(inputs, names)
    np.testing.assert_allclose(shares.predict_proba(inputs), expected, atol=1e-5)
    assert estimators.CalibratedClassifier().cv == 5
    copy = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copy.predict_proba(inputs), classifier.predict_proba(inputs))


def test_a_calibrator_takes_numbers_of_columns(estimators):
    logits, _, labels = examples()
    bare = estimators.Calibrator().fit(np.hstack([logits, logits[:, :1]]), labels)
    assert bare.params_.state.name in ("converged", "no_optimum")
    assert bare.predict_proba(np.zeros((1, 3)))[0] == pytest.approx([1 / 3] * 3)
    with pytest.raises(TypeError, match="must be integers, got float"):
        bare.fit(logits, labels.astype(float))
    with pytest.raises(ValueError, match="did you mean 'vector'"):
        estimators.Calibrator("vectr").fit(logits, labels % 2)


def test_the_method_that_gives_the_logits(estimators):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC
    from sklearn.tree import DecisionTreeClassifier

    inputs, _, labels = examples()

    def chosen(classifier, cv=2, classes=labels):
        fitted = estimators.CalibratedClassifier(classifier, cv=cv).fit(inputs, classes)
        assert np.isfinite(fitted.predict_proba(inputs)).all()
        return fitted.response_method_

    assert chosen(LogisticRegression()) == "decision_function"
    assert chosen(DecisionTreeClassifier(max_depth=2)) == "predict_log_proba"
    # The scores of a support vector machine are votes of pairs, unless there are two classes.
    assert chosen(SVC()) == "decision_function"

    class Machine(SVC):  # the option `probability` of SVC is deprecated
        def predict_proba(self, inputs):
            return np.full((len(inputs), len(self.classes_)), 1 / len(self.classes_))

    pairs = make_pipeline(StandardScaler(), Machine(decision_function_shape="ovo"))
    assert chosen(Machine()) == "predict_proba"
    assert chosen(pairs) == "predict_proba"
    assert chosen(Machine(), classes=labels > 0) == "decision_function"
    # A class of one example is absent from one of the folds.
    rare = np.where(np.arange(len(labels)) == 0, 2, labels % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a class with fewer examples than folds
        assert chosen(LogisticRegression(), classes=rare) == "predict_log_proba"


def test_weight_k_counts_as_k_copies(estimators):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    inputs, names, _ = examples()
    drawn = np.random.default_rng(1).integers(len(names), size=len(names))
    weights = np.bincount(drawn, minlength=len(names))  # as many copies as examples
    rows = np.repeat(np.arange(len(names)), weights)
    first = np.arange(len(names)) < 60

    def fit(rows, weights):
        """Fit with two folds: each example and its copies are in the same one."""
        halves = first[rows]
        splits = [np.flatnonzero(halves), np.flatnonzero(~halves)]
        pipeline = make_pipeline(FunctionTransformer(), LogisticRegression(tol=1e-8))
        classifier = estimators.CalibratedClassifier(pipeline, cv=[splits, splits[::-1]])
        return classifier.fit(inputs[rows], names[rows], sample_weight=weights)

    weighted, copied = fit(np.arange(len(names)), weights), fit(rows, None)
    np.testing.assert_allclose(
        weighted.predict_proba(inputs), copied.predict_proba(inputs), atol=1e-5
    )
    bare = fit(np.arange(len(names)), None)
    assert np.abs(weighted.predict_proba(inputs) - bare.predict_proba(inputs)).max() > 1e-3


@pytest.mark.parametrize("folds", [3, None, "GroupKFold"])
def test_groups_are_never_split(folds, estimators):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    inputs, _, labels = examples()
    groups = np.random.default_rng(2).permutation(np.arange(len(labels)) % 12)
    numbered = np.column_stack([inputs, groups])
    seen = []

    class Recorder(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            self.groups = set(X[:, 2])
            return super().fit(X[:, :2], y, sample_weight)

        def decision_function(self, X):
            seen.append((self.groups, set(X[:, 2])))
            return super().decision_function(X[:, :2])

    cv = GroupKFold(3) if folds == "GroupKFold" else folds
    estimators.CalibratedClassifier(Recorder(), cv=cv).fit(numbered, labels, groups=groups)
    assert len(seen) == (3 if folds else 5)
    for trained, predicted in seen:
        assert not trained & predicted
        assert len(trained | predicted) == 12


def test_without_a_fit_or_a_weight_the_error_says_so(estimators):
    from sklearn.exceptions import NotFittedError

    inputs, names, _ = examples()
    for estimator in (estimators.CalibratedClassifier(), estimators.Calibrator()):
        with pytest.raises(NotFittedError):
            estimator.predict(inputs)
    with pytest.raises(ValueError, match="more than one class of weight above zero"):
        estimators.CalibratedClassifier().fit(inputs, names, np.zeros(len(names)))


@pytest.mark.slow
def test_the_checks_of_scikit_learn_pass(estimators):
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are skipped
        results = check_estimator(estimators.CalibratedClassifier(), on_fail=None, on_skip=None)
    assert not [one["check_name"] for one in results if one["status"] == "failed"]
    assert sum(one["status"] == "passed" for one in results) > 40
