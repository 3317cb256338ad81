"""Match the classes of two files of predictions by their names.

Files of the same classes may list them in different orders, for example when a data frame sorted
the columns of one table. Columns and labels are put into the order of the first file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calib_jax.core.files.reading import Unreadable
from calib_jax.report.reading.prediction_tables import Predictions, counted, shown


def match_classes(
    contents: Predictions,
    baseline: Predictions,
    *,
    name: str = "these predictions",
    baseline_name: str = "the others",
    probabilities: bool = False,
) -> Predictions:
    """Put the columns and labels of predictions into the order of another file's classes.

    Raise an error for other classes. If one of the files does not name its classes, match them by
    position; `notes` reports this.

    Args:
      contents: the predictions to reorder.
      baseline: the predictions whose order is used.
      name: the name of the first file, for messages.
      baseline_name: the name of the other file, for messages.
      probabilities: whether the files hold probabilities; a single column then belongs to class 1.

    >>> ours = Predictions(np.array([[2.0, 0.0]]), np.array([0]), class_names=("cat", "dog"))
    >>> theirs = Predictions(np.array([[0.5, 3.0]]), np.array([1]), class_names=("dog", "cat"))
    >>> matched = match_classes(theirs, ours)
    >>> matched.logits, matched.labels
    (array([[3. , 0.5]]), array([0]))
    """
    names, wanted = _names(contents), _names(baseline)
    if bool(names) != bool(wanted):
        named, unnamed = (name, baseline_name) if names else (baseline_name, name)
        note = f"{unnamed} does not name its classes, and {named} does: matched by position."
        return contents._replace(notes=(*contents.notes, note))
    if names and wanted:
        names, wanted = _completed(names, wanted), _completed(wanted, names)
    if names == wanted:
        return contents
    _check_same(names, wanted, name, baseline_name)
    order = np.array([names.index(each) for each in wanted])
    logits, labels = contents.logits, contents.labels
    if logits.ndim == 1 or logits.shape[-1] == 1:
        column = logits.reshape(-1)
        other = 1 - column if probabilities else np.zeros_like(column)
        logits = np.stack([other, column], axis=-1)
    inside = labels >= 0  # labels of weight 0 that are out of range are -1
    labels = np.where(inside, np.argsort(order)[np.where(inside, labels, 0)], labels)
    note = (
        f"{name} lists its classes in another order than {baseline_name}: they are matched by name."
    )
    return contents._replace(
        logits=logits[..., order], labels=labels, class_names=wanted, notes=(*contents.notes, note)
    )


def _names(contents: Predictions) -> tuple[str, ...]:
    """Name the classes; a single column names only class 1, and class 0 is then ''."""
    if not contents.class_names and contents.name_of_one:
        return ("", contents.name_of_one)
    return contents.class_names


def _completed(names: tuple[str, ...], others: Sequence[str]) -> tuple[str, ...]:
    """Name the unnamed class of two by elimination, from the classes of the other file."""
    if names[0] or len(others) != 2 or names[1] not in others:
        return names
    return (next(other for other in others if other != names[1]), names[1])


def _check_same(names: Sequence[str], wanted: Sequence[str], name: str, baseline_name: str) -> None:
    """Raise an error for other classes, and for a class that could be confused with another."""
    ways_out = "Give predictions of the same classes, under the same names."
    for these, those, owner, other in (
        (names, wanted, name, baseline_name),
        (wanted, names, baseline_name, name),
    ):
        strange = next((each for each in these if each not in those), None)
        if strange is not None:
            raise Unreadable(
                f"{owner} has the class {shown(strange) or 'without a name'}, which {other} does"
                f" not have ({counted(len(those), 'class')}).\n{ways_out}"
            )
        again = next((each for k, each in enumerate(these) if each in these[:k]), None)
        if again is not None:
            raise Unreadable(
                f"{owner} has two classes {shown(again)}, so its classes cannot be matched with"
                f" those of {other} by name.\nGive every class a name of its own."
            )
