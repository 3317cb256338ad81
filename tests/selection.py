"""Select the cases of a parametrized test that run by default; the other cases are slow."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

Choice = Collection[Any] | Callable[[Any], bool] | int


def some(cases: Iterable[Any], by_default: Choice) -> list[Any]:
    """List the cases of a parameter, slow but for those that run by default.

    Args:
      cases: all of them.
      by_default: the cases that run by default, a function that decides, or how many: the first.
    """
    cases = list(cases)
    chosen = cases[:by_default] if isinstance(by_default, int) else by_default
    runs = chosen if callable(chosen) else chosen.__contains__
    return [pytest.param(case, marks=[] if runs(case) else pytest.mark.slow) for case in cases]
