"""Find the numbers that an optimizer was built with, to compare the optimizers of two programs."""

import functools
import types
from typing import Any

import numpy as np
import optax


def options_of(optimizer: optax.GradientTransformation) -> dict[str, Any]:
    """List the numbers and texts inside the functions of an optimizer, by function and variable.

    Optax stores options in the closures of its functions. Numbers that a function holds in
    arrays, in objects or in its own code are not seen.

    >>> options_of(optax.sgd(0.1, momentum=0.9))
    {'trace.decay': 0.9, 'trace.nesterov': False, 'scale.step_size': -0.1}
    """
    options: dict[str, list[Any]] = {}
    seen: set[int] = set()

    def visit(name: str, value: Any) -> None:
        if isinstance(value, functools.partial):
            value = (value.func, value.args, value.keywords)
        if isinstance(value, bool | int | float | str):
            options.setdefault(name, []).append(value)
        elif isinstance(value, np.number):
            options.setdefault(name, []).append(value.item())
        elif isinstance(value, tuple | list):
            for element in value:
                visit(name, element)
        elif isinstance(value, dict):
            for key, element in value.items():
                visit(f"{name}.{key}", element)
        elif isinstance(value, types.FunctionType) and id(value) not in seen:
            seen.add(id(value))
            function = value.__qualname__.split(".")[0]
            for variable, cell in zip(
                value.__code__.co_freevars, value.__closure__ or (), strict=True
            ):
                visit(f"{function}.{variable}", cell.cell_contents)

    visit("", optimizer.update)
    return {name: of[0] if len(of) == 1 else of for name, of in options.items()}
