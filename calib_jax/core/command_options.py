"""Options of a command, written once: the keyword parameters of a function.

    def main(*, bins: Annotated[int, "Number of bins."] = 15, names: Annotated[...] = ()): ...

The type, the default and the help of an option are those of its parameter. `parse` reads them from
a command line with argparse; a binary that uses other flags defines them from `read_options`.
"""

import argparse
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, NoReturn, Union, get_args, get_origin

from calib_jax.core.names import nearest

# Marks a list that is given by repeating the option; other lists are separated by commas.
REPEATED = "repeated"


class Option(NamedTuple):
    """An option of a command.

    Attributes:
      name: of the parameter.
      kind: bool, int, float or str; the type of each item of a list.
      default: a list for lists.
      explanation: its help.
      is_list: whether it takes several values, separated by commas or repeated.
      is_repeated: whether several values are given by repeating the option.
      least: the smallest whole number allowed, or None.
    """

    name: str
    kind: type
    default: Any
    explanation: str
    is_list: bool = False
    is_repeated: bool = False
    least: int | None = None


def read_options(function: Callable[..., Any]) -> list[Option]:
    """List the options of a function: its parameters annotated with `Annotated[type, help]`.

    A whole number with a default must be at least 1, or at least its default if that is smaller.

    >>> def main(*, bins: Annotated[int, "Number of bins."] = 15): ...
    >>> read_options(main)
    [Option(name='bins', kind=<class 'int'>, default=15, explanation='Number of bins.',
      is_list=False, is_repeated=False, least=1)]
    """
    options = []
    for name, parameter in inspect.signature(function).parameters.items():
        if get_origin(parameter.annotation) is not Annotated:
            continue
        annotation, explanation, *marks = get_args(parameter.annotation)
        default = parameter.default
        kind = _kind_of(annotation)
        is_list = get_origin(annotation) is not None and not _is_optional(annotation)
        options.append(
            Option(
                name,
                kind,
                list(default) if is_list and default is not None else default,
                explanation,
                is_list,
                REPEATED in marks,
                min(default, 1) if kind is int and type(default) is int else None,
            )
        )
    return options


def _is_optional(annotation: Any) -> bool:
    """Check for a type such as int | None, which is no list."""
    kinds = get_args(annotation)
    return get_origin(annotation) in (Union, types.UnionType) and not any(map(get_origin, kinds))


def _kind_of(annotation: Any) -> type:
    """Return the type of one value of int, int | None, Sequence[int] or Sequence[int] | None."""
    kinds = [kind for kind in get_args(annotation) if kind is not types.NoneType]
    return _kind_of(kinds[0]) if kinds else annotation


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def parse(
    function: Callable[..., Any],
    arguments: Sequence[str],
    *,
    program: str,
    description: str,
    positional: str,
) -> dict[str, Any]:
    """Parse a command line; print the help, or an error of one sentence, and exit if it is wrong.

    Args:
      function: its parameters are the options.
      arguments: of the command line, without the name of the program.
      program: the name of the command.
      description: the first lines of the help.
      positional: the option to which arguments without a name are added.

    >>> def main(*, files: Annotated[Sequence[str], "Files."] = (),
    ...          fit_on: Annotated[str | None, "File."] = None,
    ...          draw: Annotated[bool, "Draw figures."] = True): ...
    >>> shown = {"program": "x", "description": "", "positional": "files"}
    >>> parse(main, ["--nodraw", "a", "--fit_on=b"], **shown)
    {'files': ['a'], 'fit_on': 'b', 'draw': False}
    """
    parser = _Parser(
        program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options = read_options(function)
    for option in options:
        _add(parser, option)
    parser.add_argument(
        "positional", nargs="*", metavar=positional.upper(), help=f"The same as --{positional}."
    )
    parsed, unknown = parser.parse_known_intermixed_args(_without_values(arguments, options))
    if unknown:
        name = unknown[0].partition("=")[0].lstrip("-")
        parser.error(
            f"there is no option --{name}{nearest(name, [option.name for option in options])}"
        )
    values = vars(parsed)
    given = values.pop("positional")
    values[positional] = [*values[positional], *given]
    return values


def _without_values(arguments: Sequence[str], options: Sequence[Option]) -> list[str]:
    """Replace --draw=false by --nodraw, and --draw=true by --draw."""
    values = {"=true": "--", "=1": "--", "=false": "--no", "=0": "--no"}
    short = {
        f"--{option.name}{value}": f"{prefix}{option.name}"
        for option in options
        if option.kind is bool
        for value, prefix in values.items()
    }
    return [short.get(argument.lower(), argument) for argument in arguments]


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    """Add an option; --fit-on is accepted for --fit_on, and --no-draw for --nodraw."""
    names = list(dict.fromkeys([f"--{option.name}", f"--{option.name.replace('_', '-')}"]))
    shared: dict[str, Any] = {"dest": option.name, "default": option.default}
    default = "" if option.default in (None, [], False, "") else f" (default: {_shown(option)})"
    explanation = (option.explanation + default).replace("%", "%%")
    if option.kind is bool:
        negated = [f"--no{name[2:]}" for name in names] + [f"--no-{name[2:]}" for name in names]
        parser.add_argument(*names, **shared, action="store_true", help=explanation)
        parser.add_argument(
            *negated, dest=option.name, action="store_false", help=argparse.SUPPRESS
        )
        return
    value = _number(option) if option.kind is int else option.kind
    metavar = {int: "N", float: "X"}.get(option.kind, "TEXT")
    if option.is_repeated:
        parser.add_argument(
            *names,
            **shared,
            action="extend",
            nargs=1,
            metavar=metavar,
            type=value,
            help=explanation,
        )
        return
    reader = _separated(value) if option.is_list else value
    metavar = f"{metavar},..." if option.is_list else metavar
    parser.add_argument(*names, **shared, type=reader, metavar=metavar, help=explanation)


def _shown(option: Option) -> str:
    return ",".join(map(str, option.default)) if option.is_list else str(option.default)


def _number(option: Option) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if option.least is not None and value < option.least:
            raise argparse.ArgumentTypeError(f"it must be at least {option.least}, got {value}")
        return value

    return number


def _separated(value: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def items(text: str) -> list[Any]:
        return [value(item.strip()) for item in text.split(",") if item.strip()]

    return items
