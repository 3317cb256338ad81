"""How every binary starts and ends: a user's mistake is one sentence and an exit code.

Exit codes: 0 done, 1 the run failed (one sentence says why), 2 something that was asked for
cannot be, 128 + n stopped by signal n. Anything else is a bug, and shows its traceback.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

FAILED, REFUSED = 1, 2

# What a user can mend. Files and folders are OSError, values and names the others.
MISTAKES = (ValueError, TypeError, LookupError, AttributeError, OSError, ModuleNotFoundError)


class Failed(Exception):
    """The run itself went wrong, though nothing was wrong with what was asked for."""


class Refused(Exception):
    """What was asked for cannot be."""


def run(main: Callable[[], int | None]) -> None:
    """Run a binary whose flags are defined."""

    def guarded(arguments: Sequence[str]) -> int:
        if len(arguments) > 1:
            raise Refused(f"{arguments[1]!r} is not a flag: see --help.")
        return main() or 0

    def checked(arguments: Sequence[str]) -> int:
        try:
            return guarded(arguments)
        except Failed as error:
            return _say(error, FAILED)
        except Refused as error:
            return _say(error, REFUSED)

    app.run(checked, flags_parser=_parsed)


def refusing(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call what looks at what the user asked for: an error there is the user's to mend."""
    try:
        return function(*args, **options)
    except MISTAKES as error:
        raise Refused(sentence(error)) from error


def failing(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call what does the work: what goes wrong there in a known way ends the run."""
    try:
        return function(*args, **options)
    except (OSError, ArithmeticError, RuntimeError, LookupError, ValueError) as error:
        if type(error).__module__.startswith("calib_jax"):
            raise Failed(sentence(error)) from error
        raise


def _parsed(arguments: Sequence[str]) -> Sequence[str]:
    """Parse flags; a config file that cannot be built is a mistake like any other."""
    try:
        return app.parse_flags_with_usage(list(arguments))
    except flags.Error as error:
        sys.exit(_say(error, REFUSED))
    except (*MISTAKES, SyntaxError) as error:
        sys.exit(_say(error, REFUSED))


def _say(error: BaseException, code: int) -> int:
    print(f"error: {sentence(error)}", file=sys.stderr)
    return code


def sentence(error: BaseException) -> str:
    """Put an error into one line; a KeyError's message comes in quotes otherwise."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(str(text).split()) or type(error).__name__


def plain(config: Any) -> dict[str, Any]:
    """Make a ConfigDict what JSON gives back: lists for tuples."""
    found: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    return found
