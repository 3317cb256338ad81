"""Calibrators as estimators of scikit-learn, and the error where it is missing."""

import importlib
import pickle
import sys
import warnings

import numpy as np
import pytest
from scipy.special import expit, log_softmax

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_frozen_classifier_is_only_calibrated(estimators):
    from sklearn.frozen import FrozenEstimator
    from sklearn.svm import LinearSVC

    inputs, names, labels = examples()
    machine = LinearSVC(random_state=0).fit(inputs[:60], names[:60])
    classifier = estimators.CalibratedClassifier(FrozenEstimator(machine), method="vector")
    classifier.fit(inputs[60:], names[60:])
    scores = log_softmax(machine.decision_function(inputs), axis=1)
    bare = estimators.Calibrator("vector").fit(scores[60:], labels[60:])
    # Folds reorder the examples, so float32 sums differ.
    np.testing.assert_allclose(
        classifier.predict_proba(inputs), bare.predict_proba(scores), atol=1e-4
    )
    with pytest.raises(ValueError, match="give examples of the same classes"):
        classifier.fit(inputs[names != "cat"], names[names != "cat"])


@pytest.mark.slow
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
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    expected = set(estimators.EXPECTED_FAILURES) - skipped if kind == "Calibrator" else set()
    assert failed == expected
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


def overconfident_examples(number=2000):
    """Two classes, and 60 copies of one feature with noise."""
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=number)
    signal = labels + generator.standard_normal(number)
    inputs = signal[:, None] + 0.5 * generator.standard_normal((number, 60))
    return inputs, labels


def log_loss(classifier, inputs, labels):
    probabilities = classifier.predict_proba(inputs)
    return -np.log(probabilities[np.arange(len(labels)), labels]).mean()


def test_overconfident_predictions_keep_their_ranking(estimators):
    """Probabilities of naive Bayes round to 0 and 1; their logarithms do not."""
    from sklearn.metrics import roc_auc_score
    from sklearn.naive_bayes import GaussianNB

    inputs, labels = overconfident_examples()
    fit, test = slice(1000), slice(1000, None)
    classifier = estimators.CalibratedClassifier(GaussianNB(), method="platt", cv=2)
    classifier.fit(inputs[fit], labels[fit])
    assert classifier.response_method_ == "predict_log_proba"
    logs = classifier.estimator_.predict_log_proba(inputs[test])
    expected = roc_auc_score(labels[test], logs[:, 1] - logs[:, 0])
    calibrated = classifier.predict_proba(inputs[test])[:, 1]
    assert roc_auc_score(labels[test], calibrated) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_a_forest_with_probabilities_of_0_is_as_good_as_with_a_floor(method, estimators):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_predict

    inputs, _, labels = examples(300)
    forest = RandomForestClassifier(20, random_state=0)
    fit, test = slice(150), slice(150, None)
    classifier = estimators.CalibratedClassifier(forest, method=method, cv=3)
    classifier.fit(inputs[fit], labels[fit])
    held_out = cross_val_predict(forest, inputs[fit], labels[fit], cv=3, method="predict_proba")
    assert (held_out == 0).any()
    bare = estimators.Calibrator(method).fit(np.log(np.maximum(held_out, 1e-6)), labels[fit])
    logits = np.log(np.maximum(classifier.estimator_.predict_proba(inputs[test]), 1e-6))
    expected = -np.log(bare.predict_proba(logits)[np.arange(150), labels[test]]).mean()
    assert log_loss(classifier, inputs[test], labels[test]) == pytest.approx(expected, abs=1e-4)


def test_underflow_at_prediction_stays_finite(estimators):
    """No probability of the fit is 0, and one of the prediction is."""
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Sigmoid(ClassifierMixin, BaseEstimator):
        def fit(self, X, y):
            self.classes_ = np.unique(y)
            return self

        def predict_proba(self, X):
            positive = expit(X[:, 0])
            return np.column_stack([1 - positive, positive])

        def predict(self, X):
            return self.classes_[self.predict_proba(X).argmax(axis=1)]

    inputs, labels = overconfident_examples(200)
    classifier = estimators.CalibratedClassifier(Sigmoid(), cv=2).fit(inputs[:, :1], labels)
    assert classifier.response_method_ == "predict_proba"
    far = np.array([[1e4]])
    assert classifier.estimator_.predict_proba(far).min() == 0
    assert 0 < classifier.predict_proba(far).min() < 1e-6


@pytest.mark.slow
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
    weights = np.random.default_rng(1).integers(4, size=len(names))
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


@pytest.mark.slow
def test_weights_of_a_frozen_classifier_go_to_the_calibrator(estimators):
    from sklearn.frozen import FrozenEstimator
    from sklearn.neighbors import KNeighborsClassifier  # its `fit` takes no weights

    inputs, names, _ = examples()
    model = FrozenEstimator(KNeighborsClassifier(20).fit(inputs[:60], names[:60]))
    classifier = estimators.CalibratedClassifier(model, cv=2)
    weights = np.arange(60) % 3
    rows = np.repeat(np.arange(60), weights)
    weighted = classifier.fit(inputs[60:], names[60:], sample_weight=weights).params_.temperature
    copied = classifier.fit(inputs[60:][rows], names[60:][rows]).params_.temperature
    assert weighted == pytest.approx(float(copied), rel=1e-4)


@pytest.mark.parametrize("splitter", ["GroupKFold", "number"])
def test_groups_are_never_split(splitter, estimators):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, KFold

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

    cv = GroupKFold(3) if splitter == "GroupKFold" else 3
    estimators.CalibratedClassifier(Recorder(), cv=cv).fit(numbered, labels, groups=groups)
    assert len(seen) == 3
    for trained, predicted in seen:
        assert not trained & predicted
        assert len(trained | predicted) == 12
    splitting = estimators.CalibratedClassifier(cv=KFold(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns that this splitter ignores groups
        with pytest.raises(ValueError, match=r"KFold.* puts examples of the group .* two folds"):
            splitting.fit(inputs, labels, groups=groups)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_weight": np.ones(3)}, r"sample_weight has the shape \(3,\), but there are 120"),
        ({"sample_weight": np.full(120, -1)}, "sample_weight has values that are negative"),
        ({"sample_weight": np.full(120, np.nan)}, "sample_weight has values that are .*not finite"),
        ({"sample_weight": np.zeros(120)}, "sample_weight is zero for all examples"),
        ({"groups": np.ones(3)}, r"groups has the shape \(3,\), but there are 120 examples"),
    ],
)
def test_unfit_weights_and_groups_are_refused(arguments, message, estimators):
    inputs, names, _ = examples()
    with pytest.raises(ValueError, match=message):
        estimators.CalibratedClassifier().fit(inputs, names, **arguments)


def test_classifiers_that_do_not_fit_are_refused(estimators):
    from sklearn.ensemble import VotingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    inputs, names, labels = examples()
    neighbors = estimators.CalibratedClassifier(KNeighborsClassifier())
    with pytest.raises(TypeError, match="the fit of KNeighborsClassifier takes no sample_weight"):
        neighbors.fit(inputs, names, sample_weight=np.ones(120))
    votes = VotingClassifier([("one", LogisticRegression())])  # hard votes have no probabilities
    with pytest.raises(TypeError, match="VotingClassifier has no method decision_function, "):
        estimators.CalibratedClassifier(votes).fit(inputs, names)
    with pytest.raises(ValueError, match="needs examples of two classes, got 1 class"):
        estimators.CalibratedClassifier().fit(inputs, labels > 0, sample_weight=labels > 0)
