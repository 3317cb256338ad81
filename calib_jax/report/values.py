"""The values of predictions that were read: shapes, labels counted from 0, percent as fractions."""

from __future__ import annotations

import numpy as np

from calib_jax.core.files.reading import Unreadable
from calib_jax.report.predictions import Predictions, listed, shown
from calib_jax.report.roles import Request, texts, whole

# Grades of judges and schools end at 20, and percent rarely do.
_HIGHEST_GRADE = 20


def checked(made: Predictions, how: Request) -> Predictions:
    """Validate shapes and dtypes; count labels from 0, and move the name of an only column."""
    path, logits = how.path, made.logits
    if logits.dtype.kind != "f" or logits.ndim == 0:
        what = f"{logits.dtype} of shape {logits.shape}"
        raise Unreadable(f"the logits of {path} must be floating point, one row each, got {what}.")
    one_column = logits.ndim == 1 or logits.shape[-1] == 1
    batch = logits.shape if logits.ndim == 1 else logits.shape[:-1]
    groups = made.groups if isinstance(made.groups, dict) else {"groups": made.groups}
    beside = {"labels": made.labels, "weights": made.weights, "clusters": made.clusters}
    for name, column in (beside | groups | {"questions": made.questions}).items():
        if column is not None and column.shape != batch:
            raise Unreadable(
                f"the {name} of {path} must have shape {batch}, one for each example, got"
                f" {column.shape}."
            )
    if not made.of_classes or made.ordinal is not None:
        return made
    names, num_classes = made.class_names, 2 if one_column else logits.shape[-1]
    if len(names) not in (0, one_column, num_classes):
        raise Unreadable(f"{path} has {len(names)} class names and {num_classes} classes.")
    made = made._replace(labels=_from_zero(made, num_classes, how))
    return made._replace(class_names=(), name_of_one=names[0]) if len(names) == 1 else made


def _from_zero(made: Predictions, num_classes: int, how: Request) -> np.ndarray:
    """Count labels from 0, numbers or names of classes; labels of weight 0 may be anything."""
    cells, names, first = made.labels, made.class_names, how.first_label
    present = np.full(cells.size, True) if made.weights is None else made.weights.reshape(-1) > 0
    labels = cells.reshape(-1)
    if labels.dtype.kind == "b":
        labels = labels.astype(np.int64) + first
    elif labels.dtype.kind not in "iuf":
        # A single column is that of the second class.
        start = first + (len(names) == 1)
        number = {name: place for place, name in enumerate(names, start=start)}
        words = texts(labels)
        by_name = {word for word, counts in zip(words, present, strict=True) if counts} <= {*number}
        if by_name and len(number) < len(names):
            raise Unreadable(f"{how.path} has labels that are names, and two classes of one name.")
        found = [number[word] if word in number else whole(word) for word in words]
        # Numbers beyond 64 bits are no labels either.
        found = [first - 1 if n is None or abs(n) >= 2**63 else n for n in found]
        labels = np.array(found, np.int64)
    inside = (labels >= first) & (labels < first + num_classes)
    if labels.dtype.kind == "f":
        inside &= labels == np.rint(labels)
    wrong = np.flatnonzero(present & ~inside)
    if wrong.size:
        used, last = labels[present], first + num_classes - 1
        known = listed(names) if names else f"the {num_classes} classes {first} to {last}"
        hint = "Give ignored examples weight 0."
        if first == 0 and used.min() >= 1 and used.max() == num_classes:
            hint = f"The labels run from {int(used.min())} to {num_classes}: give --first_label=1."
        raise Unreadable(
            f"label {shown(str(cells.flat[wrong[0]]))} of {how.path} (example {wrong[0]:,}, counted"
            f" from 0) is none of {known}.\n{hint}"
        )
    labels = np.where(inside, labels, first - 1).astype(np.int64) - first
    return labels.reshape(cells.shape)


def in_fractions(made: Predictions, how: Request) -> Predictions:
    """Divide percent by 100, and say so; refuse numbers that may be percent or fractions."""
    values = made.logits
    if made.kind not in ("confidence", "probabilities"):
        return made
    if values.ndim > 1 and values.shape[-1] > 1:
        sums = np.nansum(values, axis=-1, dtype=np.float64)
        near = np.abs(sums - 100) <= max(1, values.shape[-1] / 2)
        if np.all(near) and np.nanmin(values) >= 0:
            note = f"{how.path}: the rows sum to 100: read as percent, divided by 100."
            return made._replace(logits=values / 100, notes=(*made.notes, note))
        return made
    what = "confidences" if made.kind == "confidence" else "probabilities"
    owner = f" of {shown(made.model)}" if made.model else ""
    what = f"{how.path}: the {what}{owner} go from {values.min():g} to {values.max():g}"
    most = np.mean(values[values != 0] > 1) >= 0.5 if np.any(values) else False
    percent = values.max() > _HIGHEST_GRADE and most
    fractions, outside = np.sum((values > 0) & (values < 1)), np.sum((values < 0) | (values > 1))
    if percent and fractions:
        raise Unreadable(
            f"{what}, and {fractions:,} of {values.size:,} are between 0 and 1: fractions and"
            " percent may be mixed.\nWrite the sign % behind all percent."
        )
    if percent and values.min() >= 0 and values.max() <= 100:
        note = f"{what}: read as percent, divided by 100."
        return made._replace(logits=values / 100, notes=(*made.notes, note))
    if outside:
        raise Unreadable(
            f"{what}, and {outside:,} of {values.size:,} are outside [0, 1].\nFor grades or"
            " log-probabilities name the column score and add --calibrate=isotonic --cross_fit=5."
        )
    return made
