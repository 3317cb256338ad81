"""The reference page of a subpackage: every public name with its signature and docstring."""

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from calib_jax import losses
from calib_jax.core import types as array_types

# Annotations that were evaluated get their short names back.
_SHORT = {str(value): name for name, value in vars(array_types).items() if name[0].isupper()}
del _SHORT[str(Any)]
_MODULES = "calib_jax|collections|flax|jax|jaxlib|jaxtyping|numpy|pathlib|typing"
_PLACE = re.compile(rf"(?<![\w.])(?:{_MODULES})\.(?:\w+\.)*")
_QUOTED = re.compile(r"ForwardRef\((['\"])(.*?)\1\)")
_OF_FLAX = {"self", "parent", "name"}  # arguments that Flax adds to every module
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|References):$")
_ENTRY = re.compile(r"^(\*{0,2}\w[\w., *]*?): (.*)$")
_TITLES = {"Args": "Arguments"}


class Member(NamedTuple):
    """One public name of a subpackage."""

    name: str
    value: Any
    file: str


def page(subpackage: types.ModuleType) -> str:
    """Write the table of all public names and an entry for each, grouped by file."""
    members = members_of(subpackage)
    lines = ["| name | purpose |", "|---|---|"]
    owner = subpackage.__name__
    lines += [f"| {{py:obj}}`{m.name} <{owner}.{m.name}>` | {_purpose(m)} |" for m in members]
    file = None
    for member in sorted(members, key=lambda m: (m.file == owner, m.file, m.name)):
        if member.file != file:
            file = member.file
            lines += ["", f"## {file.removeprefix(owner).strip('.') or 'constants and types'}", ""]
        lines += ["", *_entry(member, owner)]
    return "\n".join(lines)


def objectives() -> str:
    """Write an entry for each objective: its options with their defaults, and its docstring."""
    lines = []
    for name, factory in sorted(losses.catalogue().items()):
        options = inspect.signature(factory).parameters.values()
        call = ", ".join([f'"{name}"', *(f"{o.name}={_default(o)!r}" for o in options)])
        text = as_markdown(_docstring(factory))
        lines += [f"### {name}", "", "```python", f"objective({call})", "```", "", text, ""]
    return "\n".join(lines)


def members_of(subpackage: types.ModuleType) -> list[Member]:
    """List the names in `__all__`, without subpackages, with the file that defines each."""
    names = sorted(subpackage.__all__, key=lambda name: (name.lower(), name))
    values = [(name, getattr(subpackage, name)) for name in names]
    return [
        Member(name, value, _file(value, subpackage))
        for name, value in values
        if not hasattr(value, "__path__")
    ]


def _file(value: Any, subpackage: types.ModuleType) -> str:
    """Return the module that defines a value; the subpackage if its own file does not tell."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    place = getattr(value, "__module__", None) or ""
    return place if place.startswith(subpackage.__name__) else subpackage.__name__


def _purpose(member: Member) -> str:
    """Return the first paragraph of a docstring, or a constant's value, for a cell of a table."""
    if not _is_documented(member.value):
        return f"`{_value(member.value)}`"
    first = as_markdown(_docstring(member.value)).partition("\n\n")[0].replace("\n", " ")
    return first.replace("|", "\\|")


def _docstring(value: Any) -> str:
    """Return the docstring of a value itself, not that of its type."""
    return (inspect.getdoc(value) or "") if _is_documented(value) else ""


def _is_documented(value: Any) -> bool:
    """Whether a value has a docstring; a constant has none."""
    return isinstance(value, type | types.ModuleType) or _is_function(value)


def _value(constant: Any) -> str:
    """Return the text of a constant: the keys of a mapping, the name of a type."""
    if isinstance(constant, Mapping):
        return ", ".join(map(str, constant))
    return str(_short(constant)) if getattr(constant, "__origin__", None) else repr(constant)


def _is_function(value: Any) -> bool:
    """Whether a value is called as a function: a metric is an object with a signature."""
    return inspect.isroutine(value) or hasattr(value, "__signature__")


def _entry(member: Member, owner: str) -> list[str]:
    # Names of types in signatures are looked for in the current module first.
    current = [f"```{{py:currentmodule}} {owner}", "```", ""]
    if not isinstance(member.value, types.ModuleType):
        return [*current, *_described(member.name, member.value)]
    name, module = member.name, member.value
    lines = [f"```{{py:module}} {owner}.{name}", "```", "", as_markdown(_docstring(module)), ""]
    lines += current
    for part in module.__all__:
        lines += _described(f"{name}.{part}", getattr(module, part))
    return lines


def _described(name: str, value: Any, depth: int = 0) -> list[str]:
    """Return the directive that describes a function, a class with its methods, or a constant."""
    fence = "`" * (7 - depth)
    body = [as_markdown(_docstring(value)) if _is_documented(value) else f"`{_value(value)}`", ""]
    if isinstance(value, type):
        for method, function in _methods(value):
            body += _described(f"{name}.{method}", function, depth + 1)
        kind, signature = "class", _signature(value)
    elif _is_function(value):
        kind, signature = ("method" if depth else "function"), _signature(value)
    else:
        kind, signature = "data", ""
    return [f"{fence}{{py:{kind}}} {name}{signature}", *body, fence, ""]


def _methods(value: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the documented public methods that a class defines itself."""
    for name, attribute in vars(value).items():
        function = getattr(attribute, "__func__", attribute)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, function


def _signature(value: Callable[..., Any]) -> str:
    """Return the signature with short names of types; "()" where Python has none."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    hidden = _OF_FLAX if hasattr(value, "scope") else {"self"}
    parameters = [
        parameter.replace(annotation=_short(parameter.annotation), default=_default(parameter))
        for parameter in signature.parameters.values()
        if parameter.name not in hidden
    ]
    returned = _short(signature.return_annotation)
    if isinstance(value, type):
        returned = inspect.Signature.empty
    return str(signature.replace(parameters=parameters, return_annotation=returned))


class _Text(str):
    """A text that a signature prints without quotes."""

    __repr__ = str.__str__


def _short(annotation: Any) -> Any:
    """Return an annotation as text, with the names of `core.types`."""
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = _SHORT.get(str(annotation), text)
    return _Text(_PLACE.sub("", _QUOTED.sub(r"\2", text)))


def _default(parameter: inspect.Parameter) -> Any:
    """Return a default; objects without a short text become "..."."""
    shown = repr(parameter.default)
    if parameter.default is inspect.Parameter.empty or not re.search(r"[<>\n]|0x", shown):
        return parameter.default
    return _Text(getattr(parameter.default, "__name__", "..."))


# ------------------------------------------------------------------------------------------------
# Docstrings.


def as_markdown(docstring: str) -> str:
    """Convert a docstring in Google's style to Markdown; formulas in dollars stay as they are."""
    markdown: list[str] = []
    lines = inspect.cleandoc(docstring).splitlines()
    while lines:
        if section := _SECTION.match(lines[0]):
            body = _take(lines[1:], lambda line: not line or line.startswith(" "))
            del lines[: 1 + len(body)]
            markdown += ["", *_section(section[1], inspect.cleandoc("\n".join(body))), ""]
        elif lines[0].startswith(">>> "):
            example = _take(lines, bool)
            del lines[: len(example)]
            markdown += ["", "```pycon", *example, "```", ""]
        else:
            markdown.append(lines.pop(0))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(markdown)).strip()


def _take(lines: list[str], belongs: Callable[[str], object]) -> list[str]:
    """Return the leading lines that belong together."""
    end = next((i for i, line in enumerate(lines) if not belongs(line)), len(lines))
    return lines[:end]


def _section(name: str, body: str) -> list[str]:
    """Return the Markdown of one section."""
    if name in {"Returns", "Yields"}:
        return [f"**{name}**: {body}"]
    entries: list[str] = []
    for line in body.splitlines():
        entry = _ENTRY.match(line) if name != "References" else None
        if entry:
            entries.append(f"- `{entry[1]}`: {entry[2]}")
        elif entries and not (name == "References" and entries[-1].endswith(".")):
            entries[-1] += f" {line.strip()}"
        elif line.strip():
            entries.append(f"- {line.strip()}")
    return [f"**{_TITLES.get(name, name)}**", "", *entries]
