"""Calibrators as estimators of scikit-learn, for its pipelines, searches and scorers.

    from calib_jax.calibrators.scikit_learn import CalibratedClassifier, Calibrator

    classifier = CalibratedClassifier(RandomForestClassifier(), method="temperature")
    classifier.fit(X, y).predict_proba(X_test)

    calibrator = Calibrator("isotonic").fit(logits, labels)   # logits of any model
    calibrator.predict_proba(other_logits)

This file needs scikit-learn: pip install 'calib_jax[sklearn]'. `calib_jax.calibrators` does not
import it, so import it by its own path.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        MetaEstimatorMixin,
        clone,
        is_classifier,
    )
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, check_cv, cross_val_predict
    from sklearn.utils import check_consistent_length, get_tags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ModuleNotFoundError(
        "calib_jax.calibrators.scikit_learn needs scikit-learn 1.6 or newer: pip install"
        " 'calib_jax[sklearn]'.",
        name="sklearn",
    ) from error

from calib_jax import calibrators
from calib_jax.core.arrays import as_array

__all__ = ["CalibratedClassifier", "Calibrator"]

# Classifiers that count examples, such as forests, often return the probability 0, even for the
# true class. A floor below 1e-6 lets these few examples dominate the fit of a temperature.
LOG_FLOOR = float(np.log(1e-6))
# Other classifiers return 0 only by underflow, so the floor is the logarithm of the smallest
# normal float32.
LOG_UNDERFLOW = float(np.log(np.finfo(np.float32).tiny))
# `cross_val_predict` fills the columns of classes that a fold lacks with the lowest float.
ABSENT = -1e30


class _Predicts(ClassifierMixin):
    """The most probable class, of estimators with probabilities."""

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each example."""
        largest = np.argmax(self.predict_proba(X), axis=1)  # or raises that it is not fitted
        return self.classes_[largest]


class Calibrator(_Predicts, BaseEstimator):
    """A calibrator of logits: `fit(logits, labels)`, `predict_proba(logits)`.

    Labels are column numbers, so the checks of `sklearn.utils.estimator_checks` that pass other
    labels, or fewer columns than classes, do not fit it.

    Args:
      method: the name of a calibrator, one of `calibrators.catalogue()`.

    Attributes:
      params_: the fitted parameters, which `calibrators.save` writes; `params_.state.name` names
        how the fit ended.
      classes_: the numbers of the columns.
    """

    def __init__(self, method: Any = "temperature") -> None:
        self.method = method  # validated by `fit`, as scikit-learn asks

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Calibrator:
        """Fit the calibrator.

        Args:
          X: logits `[n, classes]`.
          y: labels `[n]`, from 0 to classes - 1.
          sample_weight: `[n]`; weight 0 drops an example, weight k counts it k times.
        """
        X, y = validate_data(self, as_array(X), as_array(y), dtype=_FLOATS)
        check_classification_targets(y)
        self.classes_ = np.arange(X.shape[1])
        self.params_ = calibrators.named(self.method).fit(X, y, as_array(sample_weight))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the calibrated probabilities of logits, `[n, classes]`."""
        check_is_fitted(self)
        X = validate_data(self, as_array(X), dtype=_FLOATS, reset=False)
        return _probabilities(self.method, self.params_, X)


class CalibratedClassifier(MetaEstimatorMixin, _Predicts, BaseEstimator):
    """A classifier and a calibrator of its probabilities.

    The calibrator is fitted on predictions of examples that the classifier was not trained on: in
    each of `cv` folds, a copy trained on the other folds predicts. Then the classifier is trained
    on all examples. To use a trained classifier, pass
    `sklearn.frozen.FrozenEstimator(classifier)`; `fit` then takes held-out examples, and only the
    calibrator is fitted.

    The logits are the log-softmax of `decision_function` if the classifier has it, with one column
    per class or one column for two classes. Otherwise they are `predict_log_proba`, or the
    logarithm of `predict_proba`. This order keeps the ranking of overconfident predictions, whose
    probabilities round to 0 or 1. `decision_function` comes last if a fold lacks a class, because
    `cross_val_predict` then raises an error, and for an `SVC` of three or more classes, whose
    scores are votes of pairs of classes.

    Log-probabilities have a floor: the smallest positive probability of the cross-validated
    predictions, but at most 1e-6. If none of these predictions is 0, the floor is at most 1.2e-38.

    Args:
      estimator: a classifier with `decision_function`, `predict_log_proba` or `predict_proba`; None
        is `LogisticRegression()`.
      method: the name of a calibrator, one of `calibrators.catalogue()`.
      cv: the number of folds, or a splitter of scikit-learn.

    Attributes:
      estimator_: the classifier, fitted on all examples.
      params_: the parameters of the calibrator, which `calibrators.save` writes.
      classes_: the class names, sorted.
      response_method_: the name of the method of the classifier that gives the logits.
      log_floor_: the logarithm of the smallest probability that the calibrator receives.
    """

    def __init__(self, estimator: Any = None, method: Any = "temperature", cv: Any = 5) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> CalibratedClassifier:
        """Fit the calibrator by cross-validation, and the classifier on all examples.

        Args:
          X: the inputs, in any form that the classifier takes.
          y: the classes, numbers or names.
          sample_weight: `[n]`; the classifier and the calibrator take it. The folds do not depend
            on it.
          groups: `[n]`; examples of the same group are never in two folds. If `cv` is a number, the
            splitter is `StratifiedGroupKFold(cv)`.
        """
        calibrator = calibrators.named(self.method)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        check_consistent_length(y, sample_weight, groups)
        if sample_weight is not None:
            sample_weight = column_or_1d(as_array(sample_weight), dtype=np.float64)
        if len(np.unique(labels if sample_weight is None else labels[sample_weight > 0])) < 2:
            raise ValueError("CalibratedClassifier needs more than one class of weight above zero.")
        base = LogisticRegression() if self.estimator is None else self.estimator
        if not is_classifier(base):
            raise TypeError(f"CalibratedClassifier needs a classifier, got {base!r}.")
        fit_params = _fit_params(base, sample_weight)
        self.estimator_ = clone(base).fit(X, y, **fit_params)
        if not np.array_equal(self.estimator_.classes_, self.classes_):
            raise ValueError(
                f"the classifier knows the classes {self.estimator_.classes_} and y has"
                f" {self.classes_}: give examples of the same classes."
            )
        cv = self.cv
        if groups is not None and (cv is None or isinstance(cv, numbers.Integral)):
            cv = StratifiedGroupKFold(5 if cv is None else int(cv))
        splits = list(check_cv(cv, y, classifier=True).split(X, y, groups))
        complete = all(len(np.unique(y[train])) == len(self.classes_) for train, _ in splits)
        for method in _response_methods(self.estimator_, len(self.classes_), complete):
            with np.errstate(divide="ignore"):  # forests compute log(0)
                scores = cross_val_predict(base, X, y, cv=splits, method=method, params=fit_params)
            if (2 if np.ndim(scores) == 1 else np.shape(scores)[1]) == len(self.classes_):
                break
        else:
            raise ValueError(
                f"{type(self.estimator_).__name__} must score each of the {len(self.classes_)}"
                f" classes, by {', '.join(_RESPONSE_METHODS)}; if it scores pairs of them, set"
                ' decision_function_shape="ovr".'
            )
        logs = _log_scores(scores, method)
        self.response_method_ = method
        self.log_floor_ = _log_floor(logs)
        self.params_ = calibrator.fit(np.maximum(logs, self.log_floor_), labels, sample_weight)
        if method == "decision_function":
            self.log_floor_ = -np.inf  # nothing underflows, and no class is absent
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the calibrated probabilities, one column per entry of `classes_`."""
        check_is_fitted(self)
        with np.errstate(divide="ignore"):  # forests compute log(0)
            scores = getattr(self.estimator_, self.response_method_)(X)
        logs = np.maximum(_log_scores(scores, self.response_method_), self.log_floor_)
        return _probabilities(self.method, self.params_, logs)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        base = get_tags(LogisticRegression() if self.estimator is None else self.estimator)
        tags.input_tags = base.input_tags
        return tags


_FLOATS = (np.float32, np.float64)
_RESPONSE_METHODS = ("decision_function", "predict_log_proba", "predict_proba")


def _fit_params(classifier: Any, weights: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the keyword arguments of the classifier's `fit`; pipelines weight their last step."""
    name = "__".join([*_last_step(classifier)[0], "sample_weight"])
    return {} if weights is None else {name: weights}


def _last_step(classifier: Any) -> tuple[list[str], Any]:
    """Return the last step of nested pipelines, and the path of step names to it."""
    names = []
    while hasattr(classifier, "steps"):
        name, classifier = classifier.steps[-1]
        names.append(name)
    return names, classifier


def _response_methods(classifier: Any, num_classes: int, complete: bool) -> list[str]:
    """List the methods that give logits, the best one first.

    Args:
      classifier: the fitted classifier.
      num_classes: the number of classes.
      complete: every fold is trained on all classes.
    """
    methods = [name for name in _RESPONSE_METHODS if hasattr(classifier, name)]
    # Only support vector machines have this attribute, and they train on pairs of classes. Three
    # classes have three pairs, so the number of columns alone does not identify pairs.
    shape = getattr(_last_step(classifier)[1], "decision_function_shape", None)
    if num_classes > 2 and shape == "ovo":
        methods = [name for name in methods if name != "decision_function"]
    elif not complete or (num_classes > 2 and shape == "ovr"):
        methods.sort(key="decision_function".__eq__)  # moves it to the end
    return methods


def _log_scores(scores: Any, method: str) -> np.ndarray:
    """Convert the output of a classifier to log-probabilities `[n, classes]`."""
    scores = np.asarray(scores, np.float64)
    if method == "predict_log_proba":
        return scores
    if method == "predict_proba":
        with np.errstate(divide="ignore"):
            return np.log(scores)
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], axis=1)
    # Do not return the scores themselves: `vector` and `matrix` depend on a shift of a row.
    return log_softmax(np.where(scores < ABSENT, -np.inf, scores), axis=1)


def _log_floor(logs: np.ndarray) -> float:
    """Compute the floor of the log-probabilities from the log-probabilities of the fit."""
    positive = logs >= ABSENT
    highest = LOG_UNDERFLOW if positive.all() else LOG_FLOOR
    return float(np.min(logs, where=positive, initial=highest))


def _probabilities(method: str, params: Any, logits: np.ndarray) -> np.ndarray:
    """Apply a calibrator; the softmax is in float64, so that rows sum to 1 in any arithmetic."""
    calibrated = calibrators.named(method).apply(params, logits)
    return softmax(np.asarray(calibrated, np.float64), axis=1)
