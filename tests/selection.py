"""Select the cases of a parametrized test that run by default; the other cases are slow."""

from collections.abc import Callable, Collection, Iterable
from types import CodeType
from typing import Any

import pytest

# Folders and files in which every case runs by default that is not marked as slow.
WHOLE = {"tests", "models", "data", "properties"}
WHOLE |= {"test_arrays", "test_binning", "test_numerics", "test_probabilities", "test_rows"}
WHOLE |= {"test_class_counts", "test_population", "test_recall", "test_references"}
WHOLE |= {"test_bins", "test_ranking", "test_selective", "test_without_bins"}
WHOLE |= {"test_binned", "test_event", "test_minima", "test_step", "test_venn_abers"}
Choice = Collection[Any] | Callable[[Any], bool] | int


def some(cases: Iterable[Any], by_default: Choice) -> list[Any]:
    """List the cases of a parameter, slow but for those that run by default.

    Args:
      cases: all of them.
      by_default: the cases that run by default, a function that decides, or how many: the first.
    """
    return some_of([(case,) for case in cases], _of_tuples(by_default))


def some_of(cases: Iterable[tuple], by_default: Choice) -> list[Any]:
    """List the cases of several parameters, slow but for those that run by default."""
    cases = list(cases)
    chosen = cases[:by_default] if isinstance(by_default, int) else by_default
    runs = chosen if callable(chosen) else chosen.__contains__
    return [pytest.param(*case, marks=[] if runs(case) else pytest.mark.slow) for case in cases]


def _of_tuples(by_default: Choice) -> Choice:
    if isinstance(by_default, int):
        return by_default
    runs = by_default if callable(by_default) else by_default.__contains__
    return lambda case: runs(*case)


def every_case(test: Callable[..., None]) -> Callable[..., None]:
    """Run all cases of a test by default, because each case tests another fault."""
    test.every_case = True
    return test


def first_case(test: Callable[..., None]) -> Callable[..., None]:
    """Run the first case of a test by default, because the cases take long and differ little."""
    test.first_case = True
    return test


def mark_many_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of each test as slow, except the first and, without `first_case`, the last.

    Skip what `WHOLE` names, tests whose cases are marked by hand, and tests of refusals, where each
    case is another mistake.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and not {item.path.parent.name, item.path.stem} & WHOLE
        ):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in groups.values():
        test = cases[0].function
        by_hand = any(case.get_closest_marker("slow") for case in cases)
        if by_hand or hasattr(test, "every_case") or _refuses(test.__code__):
            continue
        for case in cases[1:] if hasattr(test, "first_case") else cases[1:-1]:
            case.add_marker(pytest.mark.slow)


def _refuses(code: CodeType) -> bool:
    """Check whether a test, or a function inside the test, expects an error."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return "raises" in code.co_names or any(map(_refuses, inner))
