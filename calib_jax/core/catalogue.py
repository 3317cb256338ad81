"""Catalogues: members found by name, so that adding one touches no list.

A room opens a catalogue, its files register their members with a decorator, and the room's
`__init__` loads every file (`load_room`), which is also what makes the room's public names.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Generic, TypeVar

from calib_jax.core import checks

_Member = TypeVar("_Member", bound=Callable[..., Any])


class Catalogue(Mapping[str, _Member], Generic[_Member]):
    """A mapping from names to factories that answers a wrong name with the nearest right one.

    >>> pets = Catalogue("pet")
    >>> @pets.register("cat")
    ... def cat(*, lives=9): return lives
    >>> pets.make("cat", lives=7)
    7
    >>> pets.make("cta")
    Traceback (most recent call last):
    ValueError: pet must be one of 'cat', got 'cta'; did you mean 'cat'?
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._members: dict[str, _Member] = {}

    def register(self, name: str) -> Callable[[_Member], _Member]:
        """Enter a factory under a name; a name is given once."""

        def enter(member: _Member) -> _Member:
            if name in self._members:
                raise ValueError(f"there are two of the {self.kind} named {name!r}.")
            self._members[name] = member
            return member

        return enter

    def make(self, name: str, /, **options: Any) -> Any:
        """Call the factory of that name with options, each of which it must have."""
        checks.one_of(self.kind, name, self)
        checks.check_options(name, self._members[name], options)
        return self._members[name](**options)

    def __getitem__(self, name: str) -> _Member:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._members))

    def __len__(self) -> int:
        return len(self._members)


def load_room(room: ModuleType) -> dict[str, Any]:
    """Import every file of a room and collect the names in their `__all__`.

    Eagerly: a file often bears the name of its function, and were it first imported later,
    the import system would put the module where the function was.
    """
    names: dict[str, Any] = {}
    for found in pkgutil.iter_modules(room.__path__):
        module = importlib.import_module(f"{room.__name__}.{found.name}")
        for name in getattr(module, "__all__", ()):
            if name in names:
                raise ImportError(f"{room.__name__} has two members named {name!r}.")
            names[name] = getattr(module, name)
    return names
