"""Start and end every binary: a user's mistake prints one sentence and sets an exit code.

Exit codes: 0 done, 1 the run failed (one sentence gives the reason), 2 the request is invalid,
128 + n stopped by signal n. Any other exception is a bug, and its traceback is printed.
"""

import difflib
import errno
import functools
import json
import os
import pathlib
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from experiments import leave

flags.disclaim_key_flags()  # a flag defined here belongs to the calling module

FAILED, REFUSED = 1, 2

# Errors that a user can fix: OSError for files and folders, the other types for values and names.
MISTAKES = (ValueError, TypeError, LookupError, AttributeError, OSError, ImportError)


class Failed(Exception):
    """The run failed, although the request was valid."""


class Refused(Exception):
    """The request is invalid."""


def run(
    main: Callable[..., int | None],
    *,
    positional: bool = False,
    select: Callable[[Sequence[str]], Sequence[str]] = list,
) -> None:
    """Run a binary whose flags are defined.

    Args:
      main: returns the exit code, or None for 0.
      positional: whether `main` takes the positional arguments as a list; otherwise they are an
        error.
      select: selects the arguments to parse; `main` reads the other arguments from sys.argv.
    """

    def ended(arguments: Sequence[str]) -> int:
        if signal.getsignal(signal.SIGINT) is leave:  # a shell's job may ignore it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.ERROR)  # hides the logs of libraries
        warnings.showwarning = show_warning
        try:
            if len(arguments) > 1 and not positional:
                raise Refused(f"{arguments[1]!r} is not a flag{_flag_of(arguments[1])}")
            code = (main(list(arguments[1:])) if positional else main()) or 0
        except Failed as error:
            code = _say(error, FAILED)
        except Refused as error:
            code = _say(error, REFUSED)
        except BrokenPipeError:  # the reader closed the pipe, as in `... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 128 + signal.SIGPIPE
        except OSError as error:
            if error.filename or not _disk_is_full(error):
                raise
            code = _say(f"standard output cannot be written to: {error.strerror}.", FAILED)
        except KeyboardInterrupt:  # before or after the handler of the training loop is installed
            code = _say("interrupted.", 128 + signal.SIGINT)
        _flush()
        # Exit handlers run next, and another Ctrl-C in them would print a traceback.
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + signal.SIGINT))
        return code

    app.run(ended, flags_parser=lambda arguments: _parsed(arguments, select))


def _flag_of(argument: str) -> str:
    """Suggest the flag that an argument without a name may be the value of."""
    name = "config" if re.search(r"\.py(:|$)", argument) else "workdir"
    return f"; did you mean --{name}={argument}?" if name in flags.FLAGS else ": see --help."


def refusing(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that validates the user's request, and convert its errors to `Refused`.

    A full disk is not a mistake in the request, so it becomes `Failed`.
    """
    try:
        return function(*args, **options)
    except MISTAKES as error:
        raise (Failed if _disk_is_full(error) else Refused)(_message(error)) from error


def _disk_is_full(error: BaseException | None) -> bool:
    """Check whether an error or one of its causes is a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        error = error.__cause__ or error.__context__
    return False


def failing(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that does the work, and convert errors raised by calib_jax to `Failed`.

    A folder in use, or of another run, is a mistake in the request, so it becomes `Refused`.
    """
    try:
        return function(*args, **options)
    except Exception as error:
        if _ours(error):
            from calib_jax import train  # imported here so that --help starts fast

            refused = isinstance(error, train.AnotherConfig | train.InUse)
            raise (Refused if refused else Failed)(_message(error)) from error
        raise


def _ours(error: BaseException) -> bool:
    """Check whether calib_jax raised an error, and not a library that calib_jax called."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("calib_jax")


# ml_collections reads a tuple of strings with colons, the import paths of metrics, only in quotes.
_METRICS = re.compile(r"^(--?config\.metrics=)([\w.,]*:[\w.,:]*)$")
# A shell expands ~ only where it begins an argument, not in --workdir=~/run.
_HOME = re.compile(r"^(--?[\w.]+=)~(?=/|$)")


def _parsed(
    arguments: Sequence[str], select: Callable[[Sequence[str]], Sequence[str]] = list
) -> Sequence[str]:
    """Parse flags, and report a config that cannot be built as a user's mistake."""
    try:
        # ml_collections and `imports` read the flags of the config's keys from sys.argv, also those
        # of a --flagfile=FILE: one flag a line without quotes, # for comments, the later flag wins.
        given = flags.FLAGS.read_flags_from_files(list(arguments))
        home = os.path.expanduser("~")
        given = [_HOME.sub(lambda start: start[1] + home, argument) for argument in given]
        sys.argv[:] = _config_first(given)
        selected = select(sys.argv)
        for argument in selected:
            if match := re.fullmatch(r"--?config=([^:]*)(:.*)?", argument):
                _check_config_file(match[1], match[2] or "")
        return flags.FLAGS([_METRICS.sub(r"\1'\2'", argument) for argument in selected])
    except SystemExit:  # of --help
        if keys := _keys_of_config(selected):
            width = max(map(len, keys))
            listed = "\n".join(f"  {key.ljust(width)}  {keys[key]!r}" for key in keys)
            print(f"\nKeys of the config, each set by --config.KEY=VALUE:\n{listed}")
        sys.exit(0)  # absl's code is 1, that of a failed run
    except flags.UnrecognizedFlagError as error:
        known = [*flags.FLAGS, *(f"config.{key}" for key in _keys_of_config(selected))]
        refuse(f"there is no flag --{error.flagname}{_nearest(error.flagname, known)}")
    except (flags.Error, SyntaxError, *MISTAKES) as error:
        known = [f"config.{key}" for key in _keys_of_config(selected)]
        for name in re.findall(r"--?(?:no)?(config\.[\w.]+)", " ".join(selected)):
            if known and not any(f"{key}.".startswith(f"{name}.") for key in known):
                refuse(f"the config has no key {name.partition('.')[2]!r}{_nearest(name, known)}")
        refuse(error)


def _keys_of_config(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the keys of the config of --config=FILE with their values; empty if there is none."""
    from flax import traverse_util  # imported here so that --help starts fast

    files = [a.partition("=")[2] for a in arguments if re.match("--?config=", a)]
    if not files or "config" not in flags.FLAGS:
        return {}
    try:
        config: Any = flags.FLAGS["config"].value or flags.FLAGS["config"].parser.parse(files[-1])
    except MISTAKES:
        return {}
    return traverse_util.flatten_dict(config.to_dict(), sep=".", keep_empty_nodes=True)


def _nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the flag, or the key of the config, whose last word is nearest to that of a name."""
    from calib_jax.core.checks import closest  # imported here, because it imports JAX

    section, _, last = name.rpartition(".")
    by_word: dict[str, str] = {}
    whole, inside = f".{name}", f".{section}."
    for key in sorted(known, key=lambda k: (not k.endswith(whole), inside not in f".{k}")):
        by_word.setdefault(key.rpartition(".")[2], key)
    words = closest(last, by_word, cutoff=0.6)
    return f"; did you mean --{by_word[words[0]]}?" if words else ": see --help."


def _config_first(arguments: Sequence[str]) -> list[str]:
    """Move --config=FILE to the front, because the flags of its keys must follow it."""
    program, *rest = arguments
    config: list[str] = []
    others: list[str] = []
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [program, *config, *others, argument, *rest]
        if argument in ("--config", "-config") and rest:
            argument = f"--config={rest.pop(0)}"
        (config if re.match("--?config=", argument) else others).append(argument)
    return [program, *config[-1:], *others]


def _check_config_file(name: str, loss: str = "") -> None:
    """Raise an error if the config file does not exist; the error names the nearest config."""
    if pathlib.Path(name).is_file():
        return
    configs = {file.stem: file for file in pathlib.Path("configs").glob("[!_]*.py")}
    if not configs:
        raise FileNotFoundError(
            f"there is no config file {name} here, nor a folder configs: run this from the checkout"
            " of calib_jax."
        )
    for helper in ("recipes", "losses"):  # not complete configs
        configs.pop(helper, None)
    near = difflib.get_close_matches(pathlib.Path(name).stem, configs, n=1)
    hint = f"did you mean {configs[near[0]]}{loss}?" if near else "see the folder configs."
    raise FileNotFoundError(f"there is no config file {name or repr('')}; {hint}")


def refuse(error: BaseException | str) -> NoReturn:
    """Print an error, and exit, because the request is invalid."""
    sys.exit(_say(error, REFUSED))


def _flush() -> None:
    """Print what is buffered; if that fails, drop it, so that Python's own exit does not fail."""
    try:
        print(end="", flush=True)  # sys.stdout is None if a shell closed it
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(error: BaseException | str, code: int) -> int:
    message = error if isinstance(error, str) else _message(error)
    _flush()  # prints earlier results before the error, also in a pipe
    print(f"error: {printable(message)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """Escape control characters of a file or a peer that a message quotes.

    `calib_jax.core.texts` does more, but it imports JAX, which would delay the error.
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _message(error: BaseException) -> str:
    """Keep the line breaks in calib_jax's messages; join messages of libraries into one line."""
    if isinstance(error, Failed | Refused):
        return str(error)
    return str(error) if _ours(error) and not isinstance(error, KeyError) else sentence(error)


_NO_MAPPING = r"flag ((--[\w.]+)=.*): Failed to parse .* as a ConfigDict"
_WRONG_KINDS = {
    "an integer": r"invalid literal for int\(\)",
    "a number": r"could not convert string to float",
    "true or false": r"\('Non-boolean argument",
}


def sentence(error: BaseException) -> str:
    """Format an error as one line; keep only the last error of a quoted traceback."""
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    text = text.removeprefix("ERROR:: ")  # absl's, of a flag file
    if "Traceback (most recent call last)" in text:
        raised = re.findall(r"^\s*[\w.]*(?:Error|Exception): (.*)$", text, re.MULTILINE)
        text = raised[-1] if raised else text
    if mapping := re.match(_NO_MAPPING, text):
        return f"{mapping[1]}: a mapping is wanted, such as \"{mapping[2]}={{'key': 'value'}}\"."
    for kind, pattern in _WRONG_KINDS.items():  # the words of Python's own errors
        if wrong := re.match(rf"flag (--[\w.]+)=(.*): {pattern}", text, re.DOTALL):
            return f"{wrong[1]} must be {kind}, got {wrong[2]!r}."
    return " ".join(text.split()) or type(error).__name__


def reason(error: Exception) -> str:
    """Return why a part of the work failed, as one line; print the traceback of a bug."""
    if isinstance(error, Failed | Refused):
        return sentence(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {sentence(error)}"


_show_as_python = warnings.showwarning


def show_warning(message: Warning | str, category: type[Warning], *place: Any, **to: Any) -> None:
    """Print a warning for the user as one line, and a warning for programmers as Python does."""
    if category is UserWarning:
        say_once(f"warning: {message}")
    else:
        _show_as_python(message, category, *place, **to)


def say(line: str) -> None:
    """Print a result, without the control characters of names that it quotes."""
    print(printable(line), flush=True)


def say_step(line: str) -> None:
    """Print the next step to standard error, apart from the results."""
    print(printable(line), file=sys.stderr, flush=True)


@functools.cache
def say_once(line: str) -> None:
    """Print a line to standard error unless it was printed before."""
    say_step(line)


def define_criterion(more: str = "") -> flags.FlagHolder[list[str]]:
    """Define --criterion; `more` ends the help sentence about several criteria."""
    return flags.DEFINE_list(
        "criterion",
        ["nll"],
        "What a temperature minimizes: nll; METRIC on the papers' grid 0.1, 0.2, ..., 10; or"
        f" METRIC:STEP on another one. Several, separated by commas, are shown side by side{more}.",
    )


def define_checkpoint() -> flags.FlagHolder[str | None]:
    """Define the flag --checkpoint, which chooses the network that is evaluated or exported."""
    return flags.DEFINE_string(
        "checkpoint",
        None,
        "latest, best_NAME, or a step; by default latest, or the best where patience ended the"
        " run.",
    )


def define_resamples(fewest: int = 100) -> flags.FlagHolder[int]:
    """Define --resamples."""
    return flags.DEFINE_integer(
        "resamples", 1000, "Number of bootstrap resamples.", lower_bound=fewest
    )


def define_allow_imports() -> flags.FlagHolder[bool]:
    """Define --allow_imports."""
    return flags.DEFINE_bool(
        "allow_imports", False, "Import the code that the config of a run names by import path."
    )


def define_logits(kinds: Sequence[str]) -> flags.FlagHolder[str]:
    """Define --logits."""
    return flags.DEFINE_enum(
        "logits",
        "keep",
        kinds,
        "Whether to keep all logits in memory and in files, write them in blocks, or drop them.",
    )


def use_compilation_cache() -> None:
    """Store compiled programs in JAX's configured folder, or in the user's cache folder.

    They are code, so they never lie in the folder of a run, which may come from another person.
    """
    from calib_jax.core.files import writing  # imported here so that --help starts fast

    writing.keep_programs()


def plain(config: Any) -> dict[str, Any]:
    """Convert a ConfigDict to the values that JSON restores: tuples become lists."""
    return json.loads(json.dumps(config.to_dict()))
