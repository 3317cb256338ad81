"""Losses, networks, data sets, metrics and calibrators of the user, named by import path.

    --config.loss.name=my_package.losses:mine        or --config=FILE:my_package.losses:mine
    --config.model.name=my_package.networks:mine     and data.name
    --config.metrics=ece,my_package.metrics:mine
    --calibrate=my_package.calibrators:Mine          of experiments.score and experiments.evaluate

The module is found in the current folder or among the installed packages. The named object is a
factory like those in the catalogues, a metric built with `calib_jax.metrics.metric`, a calibrator
as described by `calib_jax.calibrators.register`, or a loss function `(logits, labels, *, options)
-> [*batch]`. Flags set its options, such as --config.loss.options.power=2.

The config.json of a run may come from another person, so the code that it names is imported only
with --allow_imports, or if the flags that name the code are given again:

    python -m experiments.evaluate --workdir=run --config.loss.name=my_package.losses:mine
"""

import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_dict, config_flags

from calib_jax import losses, metrics
from calib_jax.core import checks
from experiments.running import cli

flags.disclaim_key_flags()  # --config belongs to the binary that defines it, for its --help

# The parts of a config that name a member and hold its options.
SECTIONS = ("loss", "warm_up_loss", "model", "data")
_IMPORT_KEYS = (*(f"{section}.name" for section in SECTIONS), "metrics")
_CONFIG_HINT = "give a whole config, such as configs/digits.py:focal."


# --------------------------------------------------------------------------------------------
# Members, by catalogue name or import path.


def named(kind: str, name: str, catalogue: Mapping[str, Callable[..., Any]]) -> Any:
    """Return a member of a catalogue, or import it; `kind` is the noun in error messages."""
    if not checks.is_path(name):
        checks.one_of(kind, name, catalogue)
        return catalogue[name]
    member = checks.object_at(kind, name)
    if not callable(member):
        raise ValueError(f"the {kind} {name} must be callable, got {_kind_of(member)}.")
    return member


def loss(name: str, options: Mapping[str, Any]) -> losses.Objective:
    """Build an objective; a function of (logits, labels) becomes one."""
    if not checks.is_path(name):
        return losses.objective(name, **options)
    function, options = named("loss", name, {}), {**options}
    checks.check_options(name, function, options)
    try:
        made = function(**options)  # a factory has no required arguments
    except TypeError as error:
        if "logits" not in str(error) or "labels" not in str(error):
            raise ValueError(
                f"the loss {name} must be a function of (logits, labels), or a factory without"
                f" required arguments: {error}."
            ) from error

        def terms(logits: Any, labels: Any) -> Any:
            return function(logits, labels, **options)

        terms.__name__ = f"the loss {name}"  # for messages
        return losses.objective(terms)
    return of_kind("loss", name, made, losses.Objective)


def metric(name: str) -> metrics.Metric[..., Any]:
    """Return a metric."""
    if not checks.is_path(name):
        return metrics.named(name)
    return of_kind("metric", name, named("metric", name, {}), metrics.Metric)


def of_kind(kind: str, name: str, value: Any, expected: type) -> Any:
    """Return a value, or raise an error if it is of another type."""
    if not isinstance(value, expected):
        raise ValueError(
            f"the {kind} {name} must be or return a value of type {expected.__name__}, got"
            f" {_kind_of(value)}."
        )
    return value


def _kind_of(value: Any) -> str:
    return f"a value of type {type(value).__name__}"


# --------------------------------------------------------------------------------------------
# Configs.


def define_config(
    help_string: str, flag_values: flags.FlagValues = flags.FLAGS, *, losses: str = ""
) -> flags.FlagHolder[ConfigDict]:
    """Define --config, whose members may be import paths.

    Args:
      help_string: the help text of the flag.
      flag_values: the flag values in which the flag is defined.
      losses: the name of a flag that lists losses; a config without a loss gets the first.
    """
    try:
        holder = config_flags.DEFINE_config_file("config", None, help_string, flag_values)
    except (flags.Error, UnicodeDecodeError) as error:  # ml_collections reads a --flagfile here
        cli.refuse(error)
    flag = flag_values["config"]
    flag.parser = _ConfigParser(flag.parser, losses)
    return holder


def config_of(file: str, loss: str) -> ConfigDict:
    """Load a config file for a loss, without the other overrides of the command line."""
    return flags.FLAGS["config"].parser.parse(f"{file}:{loss}")


class _ConfigParser(flags.ArgumentParser):
    """Parse FILE:LOSS, and add the options that the flags set and the config lacks.

    A member that a flag names has no options but these: the others have the member's defaults. What
    a member does not accept is refused when it is built.
    """

    def __init__(self, parser: flags.ArgumentParser, losses: str = "") -> None:
        self._of_files = parser
        self._losses = losses

    def flag_type(self) -> str:
        """Return the type of the flag for --help."""
        return self._of_files.flag_type()

    def parse(self, path: str) -> Any:
        """Load a config."""
        file, _, loss = path.partition(":")
        listed = dict(_on_the_command_line(start="")).get(self._losses)
        if listed and not loss:
            loss = listed.split(",")[0]
        given = dict(_on_the_command_line())
        own_loss = loss if checks.is_path(loss) else ""
        try:
            config: Any = self._of_files.parse(f"{file}:{loss}" if loss and not own_loss else file)
        except AttributeError as error:
            if "get_config" not in str(error):
                raise
            raise ValueError(f"this file has no function get_config: {_CONFIG_HINT}") from error
        if missing := {"data", "model", "loss"} - {*config}:
            raise ValueError(f"its config has no {', '.join(sorted(missing))}: {_CONFIG_HINT}")
        with config.unlocked():
            for section in SECTIONS:
                other = own_loss if section == "loss" else ""
                other = given.get(f"{section}.name") or other
                renamed = other and other != config[section].name
                if renamed and (section == "model" or checks.is_path(other)):
                    _rename(config[section], other)
            for key, value in given.items():
                section, _, option = key.rpartition(".")
                options = (f"{name}.options" for name in SECTIONS)
                optional = ("best", "optimizer", "schedule", *options)
                if section in optional and option not in _at(config, section):
                    # Without a value it is a switch.
                    default = False if value is None else config_dict.placeholder(object)
                    _at(config, section)[option] = default
        return config


def _rename(section: ConfigDict, name: str) -> None:
    """Name another member in a section of a config."""
    if dropped := ", ".join(section.options):
        cli.say_once(
            f"note: the options of {section.name} ({dropped}) fall away, and {name} has its"
            " defaults."
        )
    section.name, section.options = name, ConfigDict()
    if "reduction" in section and checks.is_path(name):
        section.reduction = "mean"


def _at(config: ConfigDict, path: str) -> ConfigDict:
    for key in path.split("."):
        config = config[key]
    return config


def _on_the_command_line(start: str = "config.") -> Iterator[tuple[str, str | None]]:
    """Yield the key and the value of each flag --config.KEY, or with another start."""
    for place, argument in enumerate(sys.argv):
        if match := re.match(rf"--?{re.escape(start)}([\w.]+)(=?)(.*)", argument, re.DOTALL):
            following = sys.argv[place + 1 : place + 2]
            separate = following[0] if following and not following[0].startswith("-") else None
            yield match[1], match[3] if match[2] else separate


def paths_in(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the import paths that a config names."""
    names = [config[section]["name"] for section in SECTIONS if section in config]
    names += [name for entry in config["metrics"] for name in str(entry).split(",")]
    yield from (name for name in [*names, *config["best"]] if checks.is_path(name))


def check_allowed(
    config: Mapping[str, Any], folder: pathlib.Path | str, *, allow_imports: bool
) -> None:
    """Raise an error if a saved config names code whose import was not allowed.

    Allow the import with --allow_imports, or by repeating the flags of the run that name the code.
    """
    named_again: set[str] = set()
    for key, value in _on_the_command_line():
        if key not in _IMPORT_KEYS or value is None:
            continue
        section, _, field = key.partition(".")
        saved = config[section][field] if field else ",".join(config[section])
        if value.strip("'\"()") != saved:
            raise ValueError(
                f"--config.{key}={value} differs from {saved}, the value of the run in {folder}:"
                " leave the flag out, or train another run."
            )
        named_again |= {*value.split(",")}
    paths = [path for path in paths_in(config) if path not in named_again]
    if paths and not allow_imports:
        raise ValueError(
            f"the config of {folder} names code to import, {', '.join(paths)}: add --allow_imports"
            " if you trust it, or repeat the flags that name it."
        )


def without_import_flags(arguments: Sequence[str]) -> list[str]:
    """Drop the flags that allow the imports of a run folder; without --config they have no effect.

    >>> without_import_flags(["evaluate", "--workdir=run", "--config.loss.name=mine:loss"])
    ['evaluate', '--workdir=run']
    """
    if any(re.match(r"--?config(=|$)", argument) for argument in arguments):
        return list(arguments)
    flag = rf"--?config\.({'|'.join(map(re.escape, _IMPORT_KEYS))})"
    kept, drop_next = [], False
    for argument in arguments:
        is_flag = re.fullmatch(f"{flag}(=.*)?", argument)
        if not (is_flag or drop_next):
            kept.append(argument)
        drop_next = bool(is_flag) and "=" not in argument
    return kept
