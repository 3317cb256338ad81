"""The check of annotations at each call: beartype, which builds it once for each signature."""

import functools
from collections.abc import Callable
from typing import Any

import beartype

# As for a type checker, an int is a float.
_check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_checks: dict[Any, Callable[..., Any]] = {}


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the annotations of a function without a body, which jaxtyping has made.

    jaxtyping makes one for each function when it is defined, and a nested function is defined
    again in each call of the function around it. The check depends only on the signature, and
    beartype takes a millisecond to build it: most functions are never called by a test process,
    and nested ones are called with a signature that was checked before.
    """
    check = None

    @functools.wraps(function)
    def checking(*args: Any, **options: Any) -> Any:
        nonlocal check
        if check is None:
            check = _of_signature(function)
        return check(*args, **options)

    return checking


def _of_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    code = function.__code__
    parameters = code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_varnames
    defaults = len(function.__defaults__ or ()), tuple(function.__kwdefaults__ or ())
    annotations = tuple(function.__annotations__.items())
    key = (function.__module__, function.__qualname__, parameters, defaults, annotations)
    try:
        if key not in _checks:
            _checks[key] = _check(function)
    except TypeError:  # an annotation that cannot be hashed
        return _check(function)
    return _checks[key]
