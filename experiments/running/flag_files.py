"""Flags from files, --flagfile=FILE.

A file has one flag per line, as on the command line but without quotes. Blank lines and lines that
start with # or // are ignored. A file may name other files. The flags of a file replace the
--flagfile flag in place, so a later flag wins, whether it is in a file or not.

absl reads such files too, but ml_collections then does not see the flags of config keys.
"""

import pathlib
import re
from collections.abc import Sequence

_DIRECTIVE = re.compile(r"--?flagfile(?:=(.*))?")


def expanded(arguments: Sequence[str]) -> list[str]:
    """Replace every --flagfile by the flags of its file; after `--` nothing is a flag."""
    return _expanded([*arguments], ())


def _expanded(arguments: list[str], inside: tuple[pathlib.Path, ...]) -> list[str]:
    flags: list[str] = []
    while arguments:
        argument = arguments.pop(0)
        if argument == "--":
            return [*flags, argument, *arguments]
        if not (directive := _DIRECTIVE.fullmatch(argument)):
            flags.append(argument)
            continue
        name = directive[1]
        if name is None:
            if not arguments:
                raise ValueError("--flagfile needs the name of a file: give --flagfile=FILE.")
            name = arguments.pop(0)
        if name:  # absl ignores an empty name
            flags += _read(_found(name, inside), inside)
    return flags


def _found(name: str, inside: tuple[pathlib.Path, ...]) -> pathlib.Path:
    """Find a file in the current folder, or else beside the file that names it."""
    path = pathlib.Path(name).expanduser()
    beside = inside[-1].parent / path if inside else path
    return beside if beside.exists() and not path.exists() else path


def _read(path: pathlib.Path, inside: tuple[pathlib.Path, ...]) -> list[str]:
    """Read the flags of a file; `inside` are the files that led to it."""
    if path.resolve() in inside:
        raise ValueError(f"the flag file {path} contains itself: remove its --flagfile.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise ValueError(
            f"the flag file {path} cannot be read ({reason}): give a file with one flag on a line."
        ) from error
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("#", "//"))]
    flags: list[str] = []
    for line in kept:
        if not line.startswith("-"):
            raise ValueError(
                f"{path}: the line {line!r} is not a flag: write one flag on a line, such as"
                " --config.num_epochs=3, without quotes."
            )
        flags += re.split(r"\s+", line, maxsplit=1) if re.match(r"--?[\w.]+\s", line) else [line]
    return _expanded(flags, (*inside, path.resolve()))
