"""Catalogues: members are registered by name, so a new member needs no edit of a list.

A subpackage creates a catalogue, the files of the subpackage register their members with a
decorator, and `__init__` imports every file.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from calib_jax.core import checks
from calib_jax.core.names import check_options

_Member = TypeVar("_Member")
_Entry = TypeVar("_Entry")


class Catalogue(Mapping[str, _Member], Generic[_Member]):
    """A mapping from names to members; an error for an unknown name suggests the nearest name.

    Printing a catalogue prints the names.

    >>> pets = Catalogue("pet")
    >>> @pets.register("cat")
    ... def cat(*, lives=9): return lives
    >>> pets.make("cat", lives=7)
    7
    >>> pets
    Catalogue(pet: cat)
    >>> pets.make("cta")
    Traceback (most recent call last):
    ValueError: pet must be one of 'cat', got 'cta'; did you mean 'cat'?
    """

    def __init__(self, kind: str) -> None:
        """Create an empty catalogue; `kind` is the word for a member in error messages."""
        self.kind = kind
        self._members: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[_Entry], _Entry]:
        """Register a member under a name; raise ValueError if the name is taken."""

        def enter(member: _Entry) -> _Entry:
            if name in self._members:
                raise ValueError(
                    f"the {self.kind} {name!r} exists already: choose another name, or call"
                    " `unregister` on the catalogue."
                )
            self._members[name] = member
            return member

        return enter

    def unregister(self, name: str) -> None:
        """Remove a member, for example to define it again in a notebook."""
        self.check_name(name)
        del self._members[name]

    def make(self, name: str, /, **options: Any) -> Any:
        """Validate the options and call the factory registered under `name` with them."""
        self.check_name(name)
        check_options(name, self._members[name], options)
        return self._members[name](**options)

    def check_name(self, name: str) -> None:
        """Raise ValueError if no member has this name."""
        checks.one_of(self.kind, name, self)

    def __repr__(self) -> str:
        return f"Catalogue({self.kind}: {', '.join(self)})"

    def __getitem__(self, name: str) -> _Member:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._members))

    def __len__(self) -> int:
        return len(self._members)
