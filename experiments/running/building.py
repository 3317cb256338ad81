"""Build the data set, network, objective, optimizer and plan that a config names."""

import dataclasses
import inspect
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from calib_jax import data, losses, metrics, models, train
from calib_jax.core import checks
from calib_jax.core.examples import weighted_labels
from calib_jax.data.formats import files
from experiments.running import imports

INIT_FROM = flags.DEFINE_string(
    "init_from",
    None,
    "Initial weights: a .npz or .safetensors file, the folder of a BERT, or RUN[:CHECKPOINT].",
)
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Folder of the data sets; by default the variable CALIB_JAX_DATA_DIR."
)

# tensorfloat32 stores float32 and rounds the factors of matrix products, see `_forward`.
PRECISIONS = ("float32", "tensorfloat32", "bfloat16", "float16", "float64")
# Keys of a section that are no options of its members.
OPTIMIZER_KEYS = ("name", "learning_rate", "groups")
SCHEDULE_KEYS = ("name", "warm_up_epochs", "warm_up_steps", "warm_up_factor")
# Switches of the config -> the network's option and the default of the switch.
SWITCHES: dict[str, Any] = {"precision": ("dtype", "float32"), "remat": ("remat", False)}


class Experiment(NamedTuple):
    """A config and the values built from it.

    Attributes:
      config: the config.
      dataset: the data set.
      module: the network.
      task, plan: what is trained, and for how long.
      epoch_steps: the number of steps of an epoch.
      init: `(key) -> variables` of the network, compiled once for all seeds.
      data_dir: the folder of the data sets.
    """

    config: ConfigDict
    dataset: data.Dataset
    module: Any
    task: train.Task
    plan: train.Plan
    epoch_steps: int
    init: Callable[[Any], Any]
    data_dir: str | None = None

    def state(
        self, seed: int | None = None, *, given: bool = True, anew: bool = True
    ) -> train.TrainState:
        """Create the state before the first step.

        Args:
          seed: by default the seed of the config.
          given: whether to read the initial weights that the config names.
          anew: as in `initial.variables`.
        """
        seed = self.config.seed if seed is None else seed
        variables = self.init(jax.random.key(seed))
        if self.dataset.embedding is None and not self.config.init_from:
            return self._created(variables, seed)
        from experiments.running import initial

        if self.dataset.embedding is not None:
            variables = initial.with_embedding(variables, self.dataset.embedding)
        if self.config.init_from and given:
            source = str(files.given(self.config.init_from, "", self.data_dir))
            variables = initial.variables(source, self.module, variables, anew=anew)
        return self._created(variables, seed)

    def template(self) -> train.TrainState:
        """Return the shapes and dtypes of the state without computing it."""
        variables = jax.eval_shape(self.init, jax.random.key(self.config.seed))
        return jax.eval_shape(lambda given: self._created(given, self.config.seed), variables)

    def _created(self, variables: Any, seed: int) -> train.TrainState:
        return train.create(
            variables,
            self.task.objective,
            self.task.tx,
            self.dataset.num_classes,
            seed,
            averaged=self.plan.average > 0,
            class_counts=self.dataset.class_counts,
        )

    def identity(self) -> dict[str, Any]:
        """Describe the data, so that a run resumes with the same: classes, labels and sizes."""
        names = json.dumps([str(name) for name in self.dataset.class_names])
        identity: dict[str, Any] = {"class names": zlib.crc32(names.encode())}
        for part in ("train", "validation", "test"):
            identity[part] = train.identity_of(getattr(self.dataset, part))
        return {"data": identity}


def inputs_of(dataset: data.Dataset, count: int) -> Any:
    """Return the prepared inputs of the first examples."""
    examples = dataset.train[np.arange(count)]
    return dataset.prepare(jax.tree.map(jnp.asarray, examples.inputs))


def of_seed(config: ConfigDict, seed: int) -> ConfigDict:
    """Return the config of one seed, equal to the config of a single run."""
    seed_config = config.copy_and_resolve_references()
    seed_config.seed, seed_config.num_seeds = seed, 1
    return seed_config


def build(config: ConfigDict, *, data_dir: str | None = None) -> Experiment:
    """Build all objects that a config names, and raise an error for unknown names.

    The folder of the data sets is not part of a config, so a run may resume on another machine.
    """
    dataset = data_set(config.data.name, config.data.options, data_dir)
    return assemble(config, dataset)._replace(data_dir=data_dir)


def assemble(config: ConfigDict, dataset: data.Dataset) -> Experiment:
    """Build an experiment from a config and a data set that is already loaded."""
    _check_finite(config)
    module = network(config, dataset.num_classes)
    _check_words(module, dataset)
    _check_epochs("schedule.milestones", config.schedule.get("milestones", ()))
    objective = imports.loss(config.loss.name, config.loss.options)
    warm_up = imports.loss(config.warm_up_loss.name, config.warm_up_loss.options)
    _try(objective, dataset)
    if jax.tree.leaves(_try(warm_up, dataset)):
        raise ValueError(
            f"warm_up_loss must have no state, and {config.warm_up_loss.name!r} has one."
        )
    order = sampling(config.data.order, dataset)
    count = len(dataset.train) if order is None else len(order(config.seed, 0))
    epoch_steps = train.steps_per_epoch(count, config.batch_size, drop_last=config.drop_last)
    rate = learning_rate(config, epoch_steps)
    evaluated = {"validation": dataset.validation}
    if config.evaluate_test:
        evaluated["test"] = dataset.test
    if config.diagnose:
        evaluated["training"] = dataset.train
    task = train.Task(
        forward=_forward(module, config),
        objective=objective,
        tx=optimizer(config, rate),
        metrics=chosen_metrics(config),
        train=dataset.train if config.augment else data.as_stored(dataset.train),
        evaluated=evaluated,
        num_classes=dataset.num_classes,
        reduction=config.loss.reduction,
        warm_up_objective=warm_up,
        warm_up_reduction=config.warm_up_loss.reduction,
        augment=dataset.augment if config.augment else None,
        prepare=dataset.prepare,
        mix=data.mixup(config.mixup) if config.mixup else None,
        learning_rate=rate,
        last_layer=train.LastLayer(objective) if config.diagnose else None,
        order=order,
    )
    _check_epochs("run.show_epochs", config.run.show_epochs)
    checks.at_least("num_seeds", config.num_seeds, 1)
    checks.seed(config.seed, config.num_seeds)
    keys = {**config, **config.run, "best": best_of(config)}
    names = [field.name for field in dataclasses.fields(train.Plan) if field.name in keys]
    plan = train.Plan(**{name: keys[name] for name in names})
    # Half of the time to compile, and the same bits, on a CPU.
    quickly = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
    init = jax.jit(
        lambda key: train.init_variables(module, key, inputs_of(dataset, 1)),
        compiler_options=quickly,
    )
    return Experiment(config, dataset, module, task, plan, epoch_steps, init)


def _forward(module: Any, config: ConfigDict) -> train.Forward:
    """Build the forward pass of a linen module, or of an nnx module from a factory.

    By default XLA rounds the factors of float32 products to 11 bits on a GPU (TF32) and to 8 bits
    on a TPU. Here float32 means float32, and only the precision tensorfloat32 permits the former.
    Gradients have the precision of the forward pass.
    """
    if isinstance(module, train.NnxFactory):
        forward = module.forward(features=config.diagnose)
    else:
        forward = train.linen(module, features=config.diagnose)
    if config.precision not in ("float32", "tensorfloat32"):
        return forward

    def precise(*args: Any, **options: Any) -> Any:
        with jax.default_matmul_precision(config.precision):
            return forward(*args, **options)

    return precise


def sampling(name: str, dataset: data.Dataset) -> train.Sampling | None:
    """Return the training order that a config names; None shuffles the examples."""
    checks.one_of("data.order", name, ("shuffled", "class_balanced"))
    if name == "shuffled":
        return None
    known = weighted_labels(dataset.train)
    if known is None:
        raise ValueError(
            f"data.order=class_balanced needs the labels of {dataset.name} in memory, and its"
            " source has no attribute `labels`."
        )
    return train.class_balanced(*known)


def _check_finite(config: ConfigDict) -> None:
    """Raise an error if any number of the config is infinite or NaN."""
    for path, value in jax.tree_util.tree_leaves_with_path(config.to_dict()):
        if isinstance(value, float) and not math.isfinite(value):
            key = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(f"config.{key} must be a finite number, got {value}.")


def _check_epochs(key: str, epochs: Any) -> None:
    """Raise an error if a key of the config contains anything but numbers of epochs."""
    if not all(isinstance(epoch, int | float) for epoch in epochs):
        raise ValueError(
            f"{key} must be numbers, such as 1,10,20, got {', '.join(map(str, epochs))}."
        )


def _try(objective: losses.Objective, dataset: data.Dataset) -> Any:
    """Trace a loss, because it validates its options only when it is called; return its state."""
    num_classes = dataset.num_classes
    shape = (jnp.zeros((1, num_classes)), jnp.zeros(1, int), jnp.ones(1))
    state = jax.eval_shape(lambda: objective.init(num_classes, dataset.class_counts))
    jax.eval_shape(objective.value, state, *shape)
    return state


def data_set(name: str, options: Mapping[str, Any], data_dir: str | None = None) -> data.Dataset:
    """Build a data set, and pass `data_dir` to data sets that are read from files."""
    factory = imports.named("data set", name, data.catalogue())
    options = {**options}
    defaults = checks.options_of(factory)
    if data_dir and "data_dir" in defaults:
        options["data_dir"] = data_dir
    for key, value in options.items():
        if isinstance(defaults.get(key), tuple):
            given = tuple(value) if isinstance(value, list | tuple) else (value,)
            if [*map(type, given)] == [str]:  # the flag's A,B arrives as one text
                given = tuple(filter(None, given[0].split(",")))
            options[key] = given
    return _built("data set", name, factory, options, data.Dataset)


def network(config: ConfigDict, num_classes: int) -> Any:
    """Build the network; batch norm reduces its statistics over all devices."""
    name = config.model.name
    factory = imports.named("network", name, models.catalogue())
    known = checks.options_of(_with_signature(factory))
    options = {**config.model.options, "num_classes": num_classes}
    if "axis_name" in known:
        options["axis_name"] = train.AXIS
    checks.one_of("precision", config.precision, PRECISIONS)
    for switch, (option, default) in SWITCHES.items():
        if config[switch] in (default, "tensorfloat32"):
            continue  # an option in config.model.options still applies
        if option not in known:
            raise ValueError(
                f"{switch}={config[switch]} needs a network with the option {option!r}, and {name}"
                f" has none: leave {switch} at {default}."
            )
        options[option] = config[switch]
    if "rngs" not in known and _with_signature(factory) is factory:
        return _built("network", name, factory, options, nn.Module)
    from flax import nnx  # takes half a second

    def make(rngs: nnx.Rngs) -> nnx.Module:
        return _built("network", name, factory, options | {"rngs": rngs}, nnx.Module)

    return train.NnxFactory(make)


def _with_signature(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return `__init__` for a class of nnx, whose own signature is lost; else the factory."""
    classes = factory.__mro__ if isinstance(factory, type) else ()
    is_nnx = any(base.__module__.startswith("flax.nnx.") for base in classes)
    return factory.__init__ if is_nnx else factory


def _built(
    kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any], expected: type
) -> Any:
    """Call a factory with its options, and validate the options and the type of the result."""
    function = _with_signature(factory)
    parameters = inspect.signature(function).parameters
    unknown = {key: value for key, value in options.items() if key not in parameters}
    checks.check_options(name, function, unknown)
    return imports.of_kind(kind, name, factory(**options), expected)


# The directions of metrics that `patience_for` may name without an entry in `best`.
DIRECTIONS = dict.fromkeys(("augrc", "aurc", "brier", "refinement_brier", "refinement_nll"), "min")
DIRECTIONS["accuracy"] = "max"


def best_of(config: ConfigDict) -> dict[str, str]:
    """Return the metrics whose best checkpoint is kept, including `patience_for`."""
    best, watched = dict(config.best), config.patience_for
    if watched in DIRECTIONS:
        best.setdefault(watched, DIRECTIONS[watched])
    return best


def _check_words(module: Any, dataset: data.Dataset) -> None:
    """Raise an error if the network does not accept the words of the data set."""
    if isinstance(module, models.Bert) and not isinstance(dataset.vocabulary, data.WordPiece):
        raise ValueError(
            f"bert takes word pieces, and {dataset.name} has none: set data.options.pieces to the"
            " folder of a BERT."
        )
    # A network of the user's own may have another name for the number of its vectors.
    of_library = type(module).__module__.startswith("calib_jax.models")
    words = getattr(module, "words", 0 if of_library else None)
    if dataset.vocabulary is not None and words is not None and words < len(dataset.vocabulary):
        raise ValueError(
            f"the data set {dataset.name} has word numbers below {len(dataset.vocabulary):,}, and"
            f" the network vectors for {words:,}:\nset its option words={len(dataset.vocabulary)}."
        )


def chosen_metrics(config: ConfigDict) -> dict[str, metrics.Metric[..., Any]]:
    """Return the config's metrics by name; metrics with bins use the config's `num_bins`."""
    checks.num_bins(config.num_bins)
    names = [name for entry in config.metrics for name in str(entry).split(",")]
    names += ["by_correctness"] if config.diagnose else []
    by_name: dict[str, metrics.Metric[..., Any]] = {}
    for name in [*names, *best_of(config)]:
        metric = imports.metric(name)
        wanted = {"num_bins": config.num_bins, "excluded_class": config.get("excluded_class")}
        metric = metric.with_options(
            **{key: value for key, value in wanted.items() if key in metric.defaults()}
        )
        by_name[metric.name] = metric
    return by_name


def learning_rate(config: ConfigDict, steps_per_epoch: int) -> Any:
    """Build the learning rate schedule as a function of the step."""
    settings = config.schedule
    name, factor, epochs = settings.name, settings.warm_up_factor, settings.warm_up_epochs
    warm_up_steps = settings.get("warm_up_steps", 0)
    checks.one_of("schedule", name, train.SCHEDULES)
    _check_keys("schedule", settings, train.SCHEDULES, SCHEDULE_KEYS)
    values = {**settings, "milestones": tuple(settings.milestones), "num_epochs": config.num_epochs}
    if name == "inverse_sqrt":
        values["start"] = epochs or warm_up_steps / steps_per_epoch or 1
    known = list(inspect.signature(train.SCHEDULES[name]).parameters)[1:]  # without the rate
    options = {key: values[key] for key in known if key in values}
    schedule = train.schedule(name, config.optimizer.learning_rate, **options)
    if warm_up_steps:
        if epochs:
            raise ValueError("set schedule.warm_up_steps or schedule.warm_up_epochs, not both.")
        rate = train.of_steps(schedule, steps_per_epoch)
        return train.warmed_up(rate, steps=warm_up_steps, factor=factor)
    schedule = train.warmed_up(schedule, epochs=epochs, factor=factor)
    return train.of_steps(schedule, steps_per_epoch)


def _optimizer_of(config: ConfigDict) -> Callable[..., Any]:
    checks.one_of("optimizer", config.optimizer.name, train.OPTIMIZERS)
    return train.OPTIMIZERS[config.optimizer.name]


def _check_keys(
    section: str, settings: ConfigDict, members: Mapping[str, Any], keys: Iterable[str]
) -> None:
    """Raise an error for a key of a section that neither the section nor any member has.

    A key of another member is ignored: the base config has momentum, which adam lacks.
    """
    others = {key for member in members.values() for key in checks.options_of(member)}
    for key in {*settings} - others:
        known = [*keys, *checks.options_of(members[settings.name])]
        checks.one_of(f"key of config.{section}", key, known)


def optimizer(config: ConfigDict, rate: Any) -> Any:
    """Build the optimizer with the options in the config that it accepts."""
    settings = config.optimizer
    known = checks.options_of(_optimizer_of(config))
    _check_keys("optimizer", settings, train.OPTIMIZERS, OPTIMIZER_KEYS)
    options = {key: value for key, value in settings.items() if key in known}
    groups = settings.get("groups", ())
    if not groups:
        return train.optimizer(settings.name, rate, **options)
    # The first matching group wins, and a config sorts the keys of a dictionary.
    try:
        if isinstance(groups, ConfigDict) and len(groups) > 1:
            raise TypeError("a dictionary has no order")
        by_pattern = {str(pattern): dict(own) for pattern, own in dict(groups).items()}
    except (TypeError, ValueError) as error:
        raise ValueError(
            "config.optimizer.groups must be a tuple of pairs of a pattern and its options, such as"
            f' (("*/bias", {{"weight_decay": 0.0}}),), got {groups!r}: {error}.'
        ) from error
    return train.grouped(settings.name, rate, groups=by_pattern, **options)


def unused(config: ConfigDict, given: Iterable[str]) -> list[str]:
    """Describe the given keys and the milestones of the schedule that have no effect."""
    used = {
        "optimizer": {*OPTIMIZER_KEYS, *checks.options_of(_optimizer_of(config))},
        "schedule": {*SCHEDULE_KEYS, *checks.options_of(train.SCHEDULES[config.schedule.name])},
    }
    notes = []
    for full in given:
        section, _, key = full.partition(".")
        if section in used and key.partition(".")[0] not in used[section]:
            notes.append(f"{section} {config[section].name} does not use config.{full}")
    late = [epoch for epoch in config.schedule.milestones if epoch >= config.num_epochs]
    if late and config.schedule.name == "multi_step":
        notes.append(
            f"num_epochs={config.num_epochs} does not reach {', '.join(map(str, late))} of the"
            " milestones of the schedule"
        )
    return notes


def devices(config: ConfigDict) -> train.Devices:
    """List the devices of a run: all devices of all processes, or the number in the config."""
    if jax.process_count() == 1:
        return train.local_devices(config.run.num_devices or None)
    if config.run.num_devices:
        raise ValueError(
            f"run.num_devices={config.run.num_devices} is for one process: several use all of"
            " theirs."
        )
    return train.all_devices()
