"""Calibrators as estimators of scikit-learn, for its pipelines, searches and scorers.

    from calib_jax.calibrators.scikit_learn import CalibratedClassifier, Calibrator

    classifier = CalibratedClassifier(RandomForestClassifier(), method="temperature")
    classifier.fit(X, y).predict_proba(X_test)

    calibrator = Calibrator("isotonic").fit(logits, labels)   # logits of any model
    calibrator.predict_proba(other_logits)

This file needs scikit-learn: pip install 'calib_jax[sklearn]'. It is imported by its own name, so
`calib_jax.calibrators` does without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        MetaEstimatorMixin,
        clone,
        is_classifier,
    )
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.utils import get_tags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ModuleNotFoundError(
        "calib_jax.calibrators.scikit_learn needs scikit-learn 1.6 or newer: pip install"
        " 'calib_jax[sklearn]'.",
        name="sklearn",
    ) from error

from calib_jax import calibrators
from calib_jax.core.foreign import as_array

__all__ = ["EXPECTED_FAILURES", "CalibratedClassifier", "Calibrator"]

# Smaller probabilities of a classifier are raised to this value, so that their logarithm is finite.
FLOOR = 1e-6

_COLUMNS = "it gives fewer columns than classes, and logits have one column per class"
_NUMBERS = "it gives names or floats as labels, and labels are the numbers of the columns"
# The checks of `sklearn.utils.estimator_checks.check_estimator` that do not fit `Calibrator`, with
# the reason: `check_estimator(Calibrator(), expected_failed_checks=EXPECTED_FAILURES)`.
EXPECTED_FAILURES = {
    **dict.fromkeys(
        (
            "check_classifier_data_not_an_array",
            "check_estimators_fit_returns_self",
            "check_estimators_overwrite_params",
            "check_readonly_memmap_input",
            "check_sample_weights_not_an_array",
            "check_sample_weights_not_overwritten",
            "check_sample_weights_shape",
        ),
        _COLUMNS,
    ),
    **dict.fromkeys(("check_classifiers_classes", "check_estimators_nan_inf"), _NUMBERS),
    "check_classifiers_train": "it takes features that are no logits, and wants an accuracy of .83",
    "check_fit2d_1feature": "one column is one class, which the message says in other words",
    "check_all_zero_sample_weights_error": "the message writes the number 0, not the word zero",
    "check_sample_weight_equivalence_on_dense_data": "fits are in float32, and it wants 1e-7",
}


class Calibrator(ClassifierMixin, BaseEstimator):
    """A calibrator of logits: `fit(logits, labels)`, `predict_proba(logits)`.

    Labels are the numbers of the columns. `EXPECTED_FAILURES` lists the checks of scikit-learn
    that give other inputs.

    Args:
      method: the name of a calibrator, one of `calibrators.catalogue()`.

    Attributes:
      params_: the fitted parameters, which `calibrators.save` writes; `params_.state.name` is how
        the fit ended.
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
        if not np.issubdtype(y.dtype, np.integer):
            raise ValueError(
                f"Calibrator: y must be the numbers of the classes, integers, got {y.dtype}."
            )
        self.classes_ = np.arange(X.shape[1])
        self.params_ = calibrators.named(self.method).fit(X, y, as_array(sample_weight))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the calibrated probabilities of logits, `[n, classes]`."""
        check_is_fitted(self)
        X = validate_data(self, as_array(X), dtype=_FLOATS, reset=False)
        return _probabilities(self.method, self.params_, X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]


class CalibratedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier and a calibrator of its probabilities.

    The calibrator is fitted on predictions of examples that the classifier was not trained on: in
    each of `cv` folds, a copy trained on the other folds predicts. Then the classifier is trained
    on all examples. A classifier that is trained already goes in as
    `sklearn.frozen.FrozenEstimator(classifier)`; `fit` then takes held-out examples, and only the
    calibrator is fitted.

    Args:
      estimator: a classifier with `predict_proba` or `decision_function`; None is
        `LogisticRegression()`.
      method: the name of a calibrator, one of `calibrators.catalogue()`.
      cv: the number of folds, or a splitter of scikit-learn.

    Attributes:
      estimator_: the classifier, fitted on all examples.
      params_: the parameters of the calibrator, which `calibrators.save` writes.
      classes_: the class names, sorted.
    """

    def __init__(self, estimator: Any = None, method: Any = "temperature", cv: Any = 5) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv

    def fit(self, X: Any, y: Any) -> CalibratedClassifier:
        """Fit the calibrator by cross-validation, and the classifier on all examples.

        Args:
          X: the inputs, in any form that the classifier takes.
          y: the classes, numbers or names.
        """
        calibrator = calibrators.named(self.method)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("CalibratedClassifier needs examples of two classes, got 1 class.")
        base = LogisticRegression() if self.estimator is None else self.estimator
        if not is_classifier(base):
            raise TypeError(f"CalibratedClassifier needs a classifier, got {base!r}.")
        self.estimator_ = clone(base).fit(X, y)
        if not np.array_equal(self.estimator_.classes_, self.classes_):
            raise ValueError(
                f"the classifier knows the classes {self.estimator_.classes_} and y has"
                f" {self.classes_}: give examples of the same classes."
            )
        scores = cross_val_predict(base, X, y, cv=self.cv, method=_method_of(base))
        _check_one_per_class(base, scores, len(self.classes_))
        self.params_ = calibrator.fit(_logits(scores, _method_of(base)), labels)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the calibrated probabilities, one column per entry of `classes_`."""
        check_is_fitted(self)
        method = _method_of(self.estimator_)
        scores = getattr(self.estimator_, method)(X)
        return _probabilities(self.method, self.params_, _logits(scores, method))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each example."""
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        base = get_tags(LogisticRegression() if self.estimator is None else self.estimator)
        tags.input_tags = base.input_tags
        return tags


_FLOATS = (np.float32, np.float64)


def _method_of(classifier: Any) -> str:
    """Choose the method whose output becomes logits."""
    return "predict_proba" if hasattr(classifier, "predict_proba") else "decision_function"


def _check_one_per_class(classifier: Any, scores: Any, num_classes: int) -> None:
    """Raise an error for scores of pairs of classes, of which three classes have three as well."""
    columns = 2 if np.ndim(scores) == 1 else np.shape(scores)[1]
    pairs = getattr(classifier, "decision_function_shape", None) == "ovo" and num_classes > 2
    if columns != num_classes or (pairs and _method_of(classifier) == "decision_function"):
        raise ValueError(
            f"{type(classifier).__name__} must score each of the {num_classes} classes, not pairs"
            ' of them: set decision_function_shape="ovr".'
        )


def _logits(scores: Any, method: str) -> np.ndarray:
    """Convert the output of a classifier to logits `[n, classes]`."""
    scores = np.asarray(scores)
    if method == "predict_proba":
        return np.log(np.clip(scores, FLOOR, 1))
    return np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores


def _probabilities(method: str, params: Any, logits: np.ndarray) -> np.ndarray:
    """Apply a calibrator; the softmax is in float64, so that rows sum to 1 in any arithmetic."""
    calibrated = calibrators.named(method).apply(params, logits)
    return softmax(np.asarray(calibrated, np.float64), axis=1)
