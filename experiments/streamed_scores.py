"""Scores of predictions whose logits are not kept: values from streamed statistics."""

import functools
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from calib_jax import calibrators, metrics

# A function that returns the blocks (logits, labels, weights) of a set anew for each pass.
Blocks = Callable[[], Iterable[tuple[Any, Any, Any]]]

_NO_INTERVALS = "Values from streamed statistics; without the logits there are no intervals."


class Scores(NamedTuple):
    """Metric values before and after a calibrator.

    Attributes:
      num_examples: the number of labels of positive weight.
      before: the values of the given logits by metric.
      after: the values after the calibrator; empty without one.
      calibrator: its name and how its fit ended; empty without one.
      notes: of the streams, such as a histogram in place of rows.
    """

    num_examples: int
    before: dict[str, float]
    after: dict[str, float]
    calibrator: dict[str, str]
    notes: list[str]

    def __str__(self) -> str:
        heads = ["given", *([self.calibrator["name"]] if self.after else [])]
        lines = [
            f"{self.num_examples:,} examples. {_NO_INTERVALS}",
            "",
            " " * 16 + "  ".join(heads),
        ]
        for name, value in self.before.items():
            numbers = [value, *([self.after[name]] if self.after else [])]
            lines.append(f"{name:16}" + "  ".join(f"{number:.4f}" for number in numbers))
        return "\n".join([*lines, *self.notes])

    def save(self, folder: pathlib.Path) -> list[str]:
        """Save values.json and values.txt; return the file names."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = {"intervals": _NO_INTERVALS, **self._asdict()}
        (folder / "values.json").write_text(json.dumps(contents, indent=2) + "\n")
        (folder / "values.txt").write_text(f"{self}\n")
        return ["values.json", "values.txt"]


def check_calibrator(name: str) -> None:
    """Raise an error for a calibrator that cannot be fitted to a stream."""
    able = [k for k, one in calibrators.catalogue().items() if hasattr(one, "fit_stream")]
    if name and name not in able:
        raise ValueError(
            f"{name} needs all logits at once, and these are not kept: use --calibrate="
            f"{' or '.join(able)}, --calibrate= for none, or --logits=keep."
        )


def score(blocks: Blocks, several: dict[str, Any], *, calibrate: str, fit_on: Blocks) -> Scores:
    """Fold a set into streams, before and after a calibrator fitted on another set.

    Args:
      blocks: the set.
      several: metrics by name, with scalar values.
      calibrate: the name of the calibrator; empty for none.
      fit_on: the set that the calibrator is fitted on.
    """
    check_calibrator(calibrate)
    before, after = metrics.Stream(several), metrics.Stream(several)
    fitted, apply = {}, None
    if calibrate:
        calibrator = calibrators.named(calibrate)
        params = calibrator.fit_stream(fit_on)
        fitted = {"name": calibrate, "state": params.state.name}
        apply = functools.partial(calibrator.apply, params)
    num_examples = 0
    for logits, labels, weights in blocks():
        before.add(logits, labels, weights)
        num_examples += int((weights > 0).sum())
        if apply is not None:
            after.add(apply(logits), labels, weights)
    return Scores(
        num_examples,
        _numbers(before.values()),
        _numbers(after.values()) if apply is not None else {},
        fitted,
        before.notes,
    )


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}
