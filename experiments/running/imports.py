"""Losses, networks, data sets, metrics and calibrators of the user, named by import path.

    --config.loss.name=my_package.losses:mine        or --config=FILE:my_package.losses:mine
    --config.model.name=my_package.networks:mine     and data.name
    --config.metrics=ece,my_package.metrics:mine
    --calibrate=my_package.calibrators:Mine          of experiments.score and experiments.evaluate

The module is found in the current folder or among the installed packages. The named object is a
factory like those in the catalogues, a metric built with `calib_jax.metrics.metric`, a calibrator
as described by `calib_jax.calibrators.register`, or a loss function `(logits, labels, *, options)
-> [*batch]`. The options in the config are the defaults of the object's signature, and the command
line may change them. An option whose default is None is in the config only if the command line sets
it.

The config.json of a run may come from another person, so the code that it names is imported only
with --allow_imports, or if the flags that name the code are given again:

    python -m experiments.evaluate --workdir=run --config.loss.name=my_package.losses:mine
"""

import inspect
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from absl import flags
from ml_collections import ConfigDict, config_dict, config_flags

from calib_jax import losses, metrics
from calib_jax.core import checks
from calib_jax.core.import_paths import is_path, object_at
from calib_jax.core.names import check_options, options_of
from experiments.running import cli

flags.disclaim_key_flags()  # --config belongs to the binary that defines it, for its --help

# The parts of a config that name a member and hold its options.
SECTIONS = ("loss", "warm_up_loss", "model", "data")
_IMPORT_KEYS = (*(f"{section}.name" for section in SECTIONS), "metrics")
# Arguments that are not options: they are passed to every network or data set, belong to Flax,
# or are set by the switches of the config.
_NO_OPTIONS = {"num_classes", "axis_name", "data_dir", "name", "parent", "dtype", "remat"}


def imported(kind: str, path: str) -> Callable[..., Any]:
    """Import the function or class at a path; `kind` is the noun in error messages."""
    member = object_at(kind, path)
    if not callable(member):
        raise ValueError(f"the {kind} {path} must be callable, got {_kind_of(member)}.")
    return _with_signature(cast(Callable[..., Any], member))


def _with_signature(member: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a flax.nnx class as a function, because the class hides its parameters."""
    from flax import nnx  # imported here so that --help starts fast

    if not (inspect.isclass(member) and issubclass(member, nnx.Module)):
        return member

    def make(*args: Any, **options: Any) -> Any:
        return member(*args, **options)

    signature = inspect.signature(member.__init__)
    parameters = list(signature.parameters.values())[1:]  # without self
    make.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return make


def _kind_of(value: Any) -> str:
    return f"a value of type {type(value).__name__}"


# --------------------------------------------------------------------------------------------
# Members, by catalogue name or import path.


def loss(name: str, options: Mapping[str, Any]) -> losses.Objective:
    """Build an objective."""
    if not is_path(name):
        return losses.objective(name, **options)
    function, options = imported("loss", name), {**options}
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) not in (0, 2):
        raise ValueError(
            f"the loss {name} must be a function of (logits, labels), or a factory without required"
            f" arguments, and it requires {', '.join(required)}."
        )
    if not required:
        return called("loss", name, function, options, losses.Objective)
    check_options(name, function, options)

    def terms(logits: Any, labels: Any) -> Any:
        return function(logits, labels, **options)

    terms.__name__ = f"the loss {name}"  # for messages
    return losses.objective(terms)


def metric(name: str) -> metrics.Metric[..., Any]:
    """Return a metric."""
    if not is_path(name):
        return metrics.named(name)
    member = imported("metric", name)
    if not isinstance(member, metrics.Metric):
        raise ValueError(
            f"the metric {name} must be made with the decorator calib_jax.metrics.metric, got"
            f" {_kind_of(member)}."
        )
    return member


def factory(kind: str, name: str, catalogue: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the factory of a network or a data set."""
    if is_path(name):
        return imported(kind, name)
    checks.one_of(kind, name, catalogue)
    return catalogue[name]


def called(
    kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any], result: type
) -> Any:
    """Call a factory with its options, and validate the type of the result."""
    options = {**options}
    # `options_of` omits parameters without a default, such as num_classes.
    parameters = inspect.signature(factory).parameters
    unknown = {key: value for key, value in options.items() if key not in parameters}
    check_options(name, factory, unknown)
    value = factory(**options)
    if not isinstance(value, result):
        raise ValueError(
            f"the {kind} {name} must return a value of type {result.__name__}, got"
            f" {_kind_of(value)}."
        )
    return value


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


_CONFIG_HINT = "give a whole config, such as configs/digits.py:focal."


class _ConfigParser(flags.ArgumentParser):
    """Parse FILE:LOSS; a member given by import path gets the options of its signature.

    The overrides of the command line are applied afterwards and may change these options.
    """

    def __init__(self, parser: flags.ArgumentParser, losses: str = "") -> None:
        self._of_files = parser
        self._losses = losses

    def flag_type(self) -> str:
        """Return the type of the flag for --help."""
        return self._of_files.flag_type()

    def parse(self, path: str) -> Any:
        """Load a config; replace members given by import path, and add the options of flags."""
        names = _on_the_command_line([f"{section}.name" for section in SECTIONS])
        paths = {key.removesuffix(".name"): name for key, name in names.items() if is_path(name)}
        file, _, loss = path.partition(":")
        if not loss and (
            listed := _on_the_command_line([self._losses], start="").get(self._losses)
        ):
            loss = listed.split(",")[0]
            path = f"{file}:{loss}"
        if is_path(loss):
            paths["loss"], path = loss, file
        try:
            config: Any = self._of_files.parse(path)
        except AttributeError as error:
            if "get_config" not in str(error):
                raise
            raise ValueError(f"this file has no function get_config: {_CONFIG_HINT}") from error
        if missing := {"data", "model", "loss"} - {*config}:
            raise ValueError(f"its config has no {', '.join(sorted(missing))}: {_CONFIG_HINT}")
        for section, name in paths.items():
            member = imported(section.replace("_", " "), name)
            options = default_options(member) | _given_options(section, member)
            values = {"name": name, "options": ConfigDict(options)}
            if "reduction" in config[section]:
                values["reduction"] = "mean"
            with config.unlocked():
                for key, value in values.items():
                    config[section][key] = value
        _use_network(config, names.get("model.name", ""))
        _add_options_of_data(config, names.get("data.name", config.data.name))
        _add_settings(config)
        return config


def _on_the_command_line(keys: Iterable[str], start: str = "config.") -> dict[str, str]:
    """Return the values of the given flags --config.KEY, or with another start, by key."""
    values = {}
    for place, argument in enumerate(sys.argv):
        flag, equals, value = argument.partition("=")
        key = flag.lstrip("-").removeprefix(start)
        if flag.lstrip("-").startswith(start) and key in keys:
            values[key] = value if equals else "".join(sys.argv[place + 1 : place + 2])
    return values


def _use_network(config: ConfigDict, name: str) -> None:
    """Replace the network options in the config by the defaults of the named network."""
    if name in ("", config.model.name) or is_path(name):
        return
    from calib_jax import models  # imported here so that --help starts fast

    if name not in models.catalogue():
        return  # building the network raises an error with the nearest name
    if dropped := ", ".join(config.model.options):
        cli.say_once(
            f"note: the options of {config.model.name} ({dropped}) fall away, and {name} has its"
            " defaults."
        )
    with config.unlocked():
        network = models.catalogue()[name]
        options = default_options(network) | _given_options("model", network)
        config.model.options = ConfigDict(options)


def _add_options_of_data(config: ConfigDict, name: str) -> None:
    """Add the options of the data set that the flags set and the config lacks."""
    from calib_jax import data  # imported here so that --help starts fast

    if is_path(name) or name not in data.catalogue():
        return  # building the data set raises an error with the nearest name
    known = options_of(data.catalogue()[name])
    given = _on_the_command_line([f"data.options.{key}" for key in known])
    plain = default_options(data.catalogue()[name])
    with config.unlocked():
        for key in known:
            if f"data.options.{key}" in given and key not in config.data.options:
                default = plain.get(key, config_dict.placeholder(object))
                config.data.options[key] = default


def _add_settings(config: ConfigDict) -> None:
    """Add the options of optimizers and schedules that the flags set and the config lacks.

    The flags then replace the defaults. Other such options stay out of the config, as in the
    folders of earlier runs.
    """
    from calib_jax import train  # imported here so that --help starts fast

    optional: dict[str, dict[str, Any]] = {
        "optimizer": {"groups": ()},
        "schedule": {"start": 0.0, "warm_up_steps": 0},
    }
    for optimizer in train.OPTIMIZERS.values():
        optional["optimizer"].update(options_of(optimizer))
    for section, defaults in optional.items():
        if section not in config:
            continue
        given = _on_the_command_line([f"{section}.{key}" for key in defaults])
        with config.unlocked():
            for key, default in defaults.items():
                if f"{section}.{key}" in given and key not in config[section]:
                    config[section][key] = default


def default_options(member: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a member that a config can hold, with their defaults."""
    known = options_of(member)
    plain = (bool, int, float, str, tuple, list)
    return {
        key: value
        for key, value in known.items()
        if key not in _NO_OPTIONS and isinstance(value, plain)
    }


def _given_options(section: str, member: Callable[..., Any]) -> dict[str, Any]:
    """Return placeholders of any type for options with the default None that the flags set.

    Other such options stay out of the config, as in the folders of earlier runs.
    """
    unset = [
        key for key, value in options_of(member).items() if value is None and key not in _NO_OPTIONS
    ]
    given = _on_the_command_line([f"{section}.options.{key}" for key in unset])
    return {
        key: config_dict.placeholder(object) for key in unset if f"{section}.options.{key}" in given
    }


def paths_in(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the import paths that a config names."""
    names = [config[section]["name"] for section in SECTIONS if section in config]
    names += [name for entry in config["metrics"] for name in str(entry).split(",")]
    yield from (name for name in [*names, *config["best"]] if is_path(name))


def check_allowed(
    config: Mapping[str, Any], folder: pathlib.Path | str, *, allow_imports: bool
) -> None:
    """Raise an error if a saved config names code whose import was not allowed.

    Allow the import with --allow_imports, or by repeating the flags of the run that name the code.
    """
    given = _on_the_command_line(_IMPORT_KEYS)
    for key, value in given.items():
        section, _, field = key.partition(".")
        saved = config[section][field] if field else ",".join(config[section])
        if value.strip("'\"()") != saved:
            raise ValueError(
                f"--config.{key}={value} differs from {saved}, the value of the run in {folder}:"
                " leave the flag out, or train another run."
            )
    named_again = {name for value in given.values() for name in value.split(",")}
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
