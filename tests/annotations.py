"""The check of annotations at each call, by jaxtyping and beartype."""

import functools
from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping

# As for a type checker, an int is a float.
_check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the annotations of a function without a body, which jaxtyping has made.

    beartype takes a millisecond to build the check, and a test process never calls most functions:
    the first call builds it.
    """
    check = None

    @functools.wraps(function)
    def checking(*args: Any, **options: Any) -> Any:
        nonlocal check
        check = check or _check(function)
        return check(*args, **options)

    return checking


def jaxtyped(*args: Any, **options: Any) -> Any:
    """Decorate functions of a module or a class, and leave those inside functions as they are.

    A nested function is defined again in each call of the function around it: to decorate them,
    too, takes a tenth of the time of the tests. So the functions that a factory returns are not
    checked, but what they call is.
    """
    decorate = _jaxtyped(*args, **options)
    if args:  # a context, or a function
        return decorate
    return lambda made: made if "<locals>" in made.__qualname__ else decorate(made)
