"""Catalogues: members are registered by name, also those of users."""

from collections.abc import Callable
from typing import Any, TypeVar

from calib_jax.core import checks
from calib_jax.core.names import check_options

_Member = TypeVar("_Member")
_Entry = TypeVar("_Entry")


class Catalogue(dict[str, _Member]):
    """A table from names to members; an error for an unknown name suggests the nearest name.

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
        super().__init__()
        self.kind = kind

    def register(self, name: str) -> Callable[[_Entry], _Entry]:
        """Register a member under a name; raise ValueError if the name is taken."""

        def enter(member: Any) -> Any:
            if name in self:
                raise ValueError(f"the {self.kind} {name!r} exists already: choose another name.")
            self[name] = member
            return member

        return enter

    def make(self, name: str, /, **options: Any) -> Any:
        """Validate the options and call the factory registered under `name` with them."""
        self.check_name(name)
        factory: Any = self[name]
        check_options(name, factory, options)
        return factory(**options)

    def check_name(self, name: str) -> None:
        """Raise ValueError if no member has this name."""
        checks.one_of(self.kind, name, self)

    def __repr__(self) -> str:
        return f"Catalogue({self.kind}: {', '.join(self)})"
