"""The check of annotations at each call, by jaxtyping and beartype."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping

# As for a type checker, an int is a float.
_check = beartype.beartype(
    conf=beartype.BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError)
)
_jaxtyped = jaxtyping.jaxtyped
# The letters of shapes have one meaning within a call.
_one_call: Any = _jaxtyped("context")


def _read(hint: Any, function: Callable[..., Any]) -> Any:
    """Read an annotation that is a text; Any if it names what only a type checker imports."""
    try:
        return eval(hint, function.__globals__) if isinstance(hint, str) else hint
    except NameError:
        return Any


def checked(function: Callable[..., Any], scope: Any = None) -> Callable[..., Any]:
    """Check the annotations of a function, within a scope of letters unless there is one.

    beartype takes a millisecond to build the check, and a test process never calls most functions:
    the first call builds it.
    """
    check = None

    @functools.wraps(function)
    def checking(*args: Any, **options: Any) -> Any:
        nonlocal check
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **options)
        if check is None:
            hints = function.__annotations__
            function.__annotations__ = {name: _read(hints[name], function) for name in hints}
            check = _check(function)
        if scope is None:
            return check(*args, **options)
        with scope:
            return check(*args, **options)

    return checking


def jaxtyped(made: Any = None, **options: Any) -> Any:
    """Decorate functions of a module or a class, and leave those inside functions as they are.

    A nested function is defined again in each call of the function around it: to decorate them,
    too, takes a tenth of the time of the tests. So the functions that a factory returns are not
    checked, but what they call is.

    jaxtyping checks the arguments of a call twice, which tells which of them is wrong, and takes
    twice the time. A generator checks them when it starts, in the scope of another function.
    """
    if made is None:
        return functools.partial(jaxtyped, **options)
    if made == "context" or inspect.isclass(made) or inspect.isgeneratorfunction(made):
        return _jaxtyped(made, **options)
    return made if "<locals>" in made.__qualname__ else checked(made, _one_call)
