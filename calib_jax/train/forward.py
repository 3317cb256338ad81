r"""The forward pass: the interface between a step and a network, and its last layer.

`linen` and `nnx` convert networks of Flax. With `features=True` the forward pass also returns the
inputs of the layer "head", from which `LastLayer` computes norms.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as flax_linen

from calib_jax.core.binning import class_sums
from calib_jax.core.numerics import at_least_float32, weigh
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, PyTree, Weights
from calib_jax.train.pmap import AXIS

HEAD = "head"
DECADES, PER_DECADE = (-8, 4), 8
_NUM_BINS = (DECADES[1] - DECADES[0]) * PER_DECADE
EDGES = [float(f"{edge:.4g}") for edge in np.logspace(*DECADES, _NUM_BINS + 1)]


# `(params, model_state, inputs, *, train, rng, weights) -> (logits, model_state, aux)`: `train`
# selects batch statistics and dropout, `rng` has one key per example, and batch norm ignores
# examples whose entry in `weights` is 0.
Forward: TypeAlias = Callable[..., tuple[Array, PyTree, Any]]


_ARGUMENTS = {"train", "mask", "keys"}  # of a network's call, besides its inputs
_OTHER_MODES = ("deterministic", "training", "is_training")  # other packages' names for the mode


def _accepted(module: Any) -> set[str]:
    """Find which of `_ARGUMENTS` a network's call accepts; raise an error if it needs others."""
    name, classes = type(module).__name__, {base.__name__ for base in type(module).__mro__}
    parameters = list(inspect.signature(module.__call__).parameters.values())
    others = [p for p in parameters[1:] if p.name not in _ARGUMENTS]
    named = [p for p in others if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unset = [p.name for p in named if p.default is p.empty]
    # With None, nnx uses the mode of the module.
    unset += [p.name for p in named if p.name in _OTHER_MODES and p.default is not None]
    if not parameters or unset:
        wrong = f"also has {unset[0]!r}, which training never sets" if unset else "takes nothing"
        raise TypeError(
            f"{name}.__call__ must take one input, and may take train, mask and keys; it {wrong}."
            "\nWrite it as (self, x), or as (self, x, *, train, mask=None)."
        )
    accepted = {p.name for p in parameters[1:]} & _ARGUMENTS
    # Sequential passes all arguments to its first layer, which takes the inputs alone.
    if any(p.kind is p.VAR_KEYWORD for p in others) and "Sequential" not in classes:
        accepted |= {"train", "mask"}
    return accepted


def _arguments(
    module: Any, *, train: bool, rng: Array | None, weights: Weights | None, has_statistics: bool
) -> dict[str, Any]:
    """Return the arguments of a network's call; raise an error if statistics include padding."""
    accepted = _accepted(module)
    if train and has_statistics and "mask" not in accepted:
        raise TypeError(
            f"{type(module).__name__} has running statistics, so its call needs the parameter"
            " mask, which marks the real rows.\nWrite it as (self, x, *, train, mask=None), with"
            " models.BatchNorm(axis_name=AXIS)(x, train=train, mask=mask) and AXIS of"
            " calib_jax.train. An nnx module gives mask to its nnx.BatchNorm, with an axis for"
            " each axis of x, and axis_name=AXIS for several devices."
        )
    mask = None if weights is None else weights > 0
    values = {"train": train, "mask": mask, **({"keys": rng} if train else {})}
    return {name: value for name, value in values.items() if name in accepted}


def check_forward(forward: Any) -> None:
    """Raise TypeError for another value in place of a forward pass, such as a network."""
    is_network = any(base.__module__.startswith("flax.") for base in type(forward).__mro__)
    if not callable(forward) or is_network:
        raise TypeError(
            f"forward must be a function, got {type(forward).__name__}: give train.linen(module) or"
            " train.nnx(module)."
        )


def linen(module: Any, *, features: bool = False) -> Forward:
    """Convert a Flax linen module to a `Forward`.

    The module's call takes the inputs, and may take `train`; `mask`, which marks the real rows of a
    batch; and `keys`, one key per example, in training. A module with running statistics needs
    `mask`. Flax's own dropout gets one key for the whole batch, the key of the first example, and
    streams of any other name, such as `self.make_rng("noise")`, draw from another key of the batch,
    so results change with the number of devices; `models.Dropout` with `keys` draws for each
    example. Evaluation has no streams.

    Args:
      module: the network.
      features: whether `aux` holds the inputs of the layer "head" in evaluation; else it is None.

    >>> import jax
    >>> from flax import linen as nn
    >>> module = nn.Dense(2)
    >>> variables = init_variables(module, jax.random.key(0), jax.numpy.ones((1, 3)))
    >>> logits, _, _ = linen(module)(variables["params"], {}, jax.numpy.ones((4, 3)), train=True)
    >>> logits.shape
    (4, 2)
    """
    _check_linen("linen", module)
    _accepted(module)  # refuses a network that needs other arguments
    # The networks of the library draw from `keys` and get no streams.
    of_library = type(module).__module__.startswith("calib_jax.")

    def forward(
        params: PyTree,
        model_state: PyTree,
        inputs: PyTree,
        *,
        train: bool,
        rng: Array | None = None,
        weights: Weights | None = None,
    ) -> tuple[Array, PyTree, Any]:
        variables = {"params": params, **model_state}
        call = _arguments(
            module, train=train, rng=rng, weights=weights, has_statistics=bool(model_state)
        )
        if features and not train:
            logits, given = _with_features(module, variables, inputs, call)
            return logits, model_state, given
        if train and rng is not None and not of_library:
            # Flax draws from "params" for every name without a stream of its own.
            call["rngs"] = {"dropout": rng[0], "params": jax.random.fold_in(rng[0], 1)}
        if not (train and model_state):
            return module.apply(variables, inputs, **call), model_state, None
        logits, changed = module.apply(variables, inputs, **call, mutable=list(model_state))
        return logits, {**model_state, **changed}, None

    return forward


def _check_linen(caller: str, module: Any) -> None:
    """Raise an error for a network that is no linen module."""
    if not (hasattr(module, "init") and hasattr(module, "apply")):
        raise TypeError(
            f"{caller} takes a linen module, got {type(module).__name__}: an nnx module needs"
            " forward = train.nnx(module), and forward.variables are its variables."
        )


def outputs_of(outputs: Any, rows: int) -> tuple[Any, PyTree, Any]:
    """Return the three values of a forward pass; raise an error for others, as logits alone."""
    if not isinstance(outputs, tuple) or len(outputs) != 3:
        raise TypeError(
            f"a forward pass must return (logits, model_state, aux), got a"
            f" {type(outputs).__name__}: return (logits, model_state, None)."
        )
    shape: tuple[int, ...] = getattr(outputs[0], "shape", ())
    got = f"the shape {shape}" if shape else f"a {type(outputs[0]).__name__}"
    if len(shape) < 2:
        raise TypeError(f"the network must return logits [*batch, classes], got {got}.")
    if shape[0] != rows:
        raise ValueError(
            f"the network must return a row of logits for each of the {rows} examples, got {got}."
        )
    return outputs


def with_classes(forward: Forward, num_classes: int) -> Forward:
    """Wrap a forward pass: tracing it checks that the logits have one column per class."""

    def checked(*args: Any, weights: Weights, **options: Any) -> tuple[Array, PyTree, Any]:
        outputs = outputs_of(forward(*args, weights=weights, **options), len(weights))
        if (columns := outputs[0].shape[-1]) != num_classes:
            raise ValueError(
                f"the network has {columns} outputs and the task {num_classes} classes: give both"
                " the same number."
            )
        return outputs

    return checked


def init_variables(module: Any, key: Any, inputs: PyTree) -> PyTree:
    """Initialize the variables of a linen module or of an `NnxFactory`.

    The call of a linen module may lack the parameter `train`.
    """
    if isinstance(module, NnxFactory):
        return module.init(key)
    _check_linen("init_variables", module)
    call = {"train": False} if "train" in _accepted(module) else {}
    return module.init(key, inputs, **call)


def _with_features(
    module: Any, variables: PyTree, inputs: PyTree, options: dict[str, Any]
) -> tuple[Array, Any]:
    """Evaluate a network, and capture the inputs of its last layer."""
    given = []

    def keep(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.module.name == HEAD and context.method_name == "__call__":
            given.append(args[0])
        return call(*args, **kwargs)

    with flax_linen.intercept_methods(keep):
        logits = module.apply(variables, inputs, **options)
    return logits, given[-1] if given else None


class Nnx:
    """A `Forward` of a Flax nnx module, and its initial variables; made by `nnx`.

    Attributes:
      variables: `params` and, if there are any, `state`: the other variables, such as running
        statistics, without the random state.
    """

    def __init__(self, module: Any, *, features: bool = False) -> None:
        """Split a module into its structure and its variables."""
        from flax import nnx as flax_nnx

        _accepted(module)  # refuses a network that needs other arguments
        self._features = features
        nodes = (node for _, node in flax_nnx.iter_graph(module))
        norms = [node for node in nodes if isinstance(node, flax_nnx.BatchNorm)]
        self._averages_alone = any(norm.axis_name is None for norm in norms)
        parts: Any = flax_nnx.split(module, flax_nnx.Param, flax_nnx.RngState, ...)
        self._structure, self._params, self._random, self._state = parts
        self.variables: dict[str, Any] = {"params": flax_nnx.to_pure_dict(self._params)}
        if state := flax_nnx.to_pure_dict(self._state):
            self.variables["state"] = state

    def __call__(
        self,
        params: PyTree,
        model_state: PyTree,
        inputs: PyTree,
        *,
        train: bool,
        rng: Array | None = None,
        weights: Weights | None = None,
    ) -> tuple[Array, PyTree, Any]:
        """Apply the network; see `Forward`."""
        from flax import nnx as flax_nnx

        state = model_state.get("state", {})
        if train and self._averages_alone and _num_devices() > 1:
            raise ValueError(
                "an nnx.BatchNorm without axis_name averages over the rows of its own device, so"
                f" {_num_devices()} devices train another network than one: give it"
                " axis_name=train.AXIS."
            )
        # The streams of a module draw for the whole batch: the key of the first example seeds them.
        key = jax.random.key(0) if rng is None else rng[0]
        module = flax_nnx.merge(
            self._structure,
            _filled(self._params, params),
            _seeded(self._random, key),
            _filled(self._state, state),
        )
        (module.train if train else module.eval)()
        call = _arguments(module, train=train, rng=rng, weights=weights, has_statistics=bool(state))
        if self._features and not train and hasattr(module, HEAD):
            head = _Recorded(getattr(module, HEAD))
            vars(module)[HEAD] = head  # `setattr` would register it as a part of the module
            return module(inputs, **call), model_state, head.given
        logits = module(inputs, **call)
        if not (train and state):
            return logits, model_state, None
        parts: Any = flax_nnx.split(module, flax_nnx.Param, flax_nnx.RngState, ...)
        return logits, {**model_state, "state": flax_nnx.to_pure_dict(parts[-1])}, None


class _Recorded:
    """The last layer of an nnx module, which keeps the inputs of its last call."""

    def __init__(self, layer: Any) -> None:
        self._layer, self.given = layer, None

    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        self.given = inputs
        return self._layer(inputs, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def nnx(module: Any, *, features: bool = False) -> Nnx:
    """Convert a Flax nnx module to a `Forward`, whose `variables` start the train state.

    The module's call takes the arguments that `linen` describes. In training the module is in
    `train()` mode, else in `eval()` mode, and its random streams are seeded by the step. Gradients
    are taken for variables of type `nnx.Param`.

    Args:
      module: the network, with its initial values.
      features: whether `aux` holds the inputs of the layer `self.head` in evaluation; else it is
        None.

    >>> import jax
    >>> from flax import nnx as flax_nnx
    >>> forward = nnx(flax_nnx.Linear(3, 2, rngs=flax_nnx.Rngs(0)))
    >>> sorted(forward.variables["params"])
    ['bias', 'kernel']
    >>> logits, _, _ = forward(forward.variables["params"], {}, jax.numpy.ones((4, 3)), train=True)
    >>> logits.shape
    (4, 2)
    """
    from flax import nnx as flax_nnx

    if not isinstance(module, flax_nnx.Module):
        raise TypeError(
            f"nnx takes an nnx module, got {type(module).__name__}: a linen module needs"
            " train.linen(module)."
        )
    return Nnx(module, features=features)


class NnxFactory(NamedTuple):
    """A function that creates an nnx module, so that every seed has its own initial values.

    Attributes:
      make: `(rngs) -> module`.

    >>> import jax
    >>> from flax import nnx as flax_nnx
    >>> factory = NnxFactory(lambda rngs: flax_nnx.Linear(3, 2, rngs=rngs))
    >>> variables = factory.init(jax.random.key(0))
    >>> factory.forward()(variables["params"], {}, jax.numpy.ones((4, 3)), train=False)[0].shape
    (4, 2)
    """

    make: Callable[[Any], Any]

    def init(self, key: Any) -> PyTree:
        """Create the network with this key, and return its variables."""
        from flax import nnx as flax_nnx

        return nnx(self.make(flax_nnx.Rngs(key))).variables

    def forward(self, *, features: bool = False) -> Forward:
        """Return the forward pass, as `nnx` does; its structure does not depend on the key."""
        from flax import nnx as flax_nnx

        return nnx(flax_nnx.eval_shape(lambda: self.make(flax_nnx.Rngs(0))), features=features)


def _num_devices() -> int:
    """Return the number of devices that share the batch of the step that is traced."""
    try:
        return int(jax.lax.psum(1, AXIS))
    except NameError:  # no axis of devices
        return 1


def _filled(state: Any, values: PyTree) -> Any:
    """Return a state of the same structure with other values."""
    from flax import nnx as flax_nnx

    filled = jax.tree.map(lambda leaf: leaf, state)
    flax_nnx.replace_by_pure_dict(filled, values)
    return filled


def _seeded(random: Any, key: Any) -> Any:
    """Return the random state of a module, with streams seeded by a key."""
    leaves, structure = jax.tree.flatten(random)
    return jax.tree.unflatten(
        structure,
        [
            jax.random.fold_in(key, number)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros(leaf.shape, leaf.dtype)
            for number, leaf in enumerate(leaves)
        ],
    )


# ------------------------------------------------------------------------------------------------
# The last layer.


@dataclasses.dataclass(frozen=True)
class LastLayer:
    r"""The norms of the weights, inputs and gradients of the last layer, named "head".

    The network has one prediction per input. For an example with last-layer input $h$ and loss
    gradient $g = \partial \ell / \partial z$ with respect to its logits, the gradients of the
    layer's weights and bias are $g h^T$ and $g$. Their joint norm is

    $$\lVert g \rVert \sqrt{\lVert h \rVert^2 + 1},$$

    so per-example gradient norms cost no more than the gradient of the batch. With cross-entropy
    alone the weights and the inputs grow without bound once every example is classified correctly;
    Mukhoti et al. 2020, section 4, compare losses by these norms.

    Attributes:
      objective: the loss whose gradients are measured. If it couples the examples of a batch, the
        gradients are coupled too.
    """

    objective: Any

    def stat(
        self, loss_state: PyTree, logits: Array, labels: Array, weights: Array, features: Any
    ) -> Sums:
        """Sum the norms over examples; `features` are the inputs of the layer."""
        if logits.ndim != 2:
            raise ValueError(
                "last-layer statistics need one prediction for each input, logits [batch, classes],"
                f" and the network returned {logits.shape}: leave last_layer at None (diagnose at"
                " False in a config)."
            )
        if features is None:
            raise ValueError(
                f"last-layer statistics need the inputs of the layer {HEAD!r}, and the forward pass"
                f" returned none: name the network's last layer {HEAD!r}, and build the forward"
                " pass with train.linen or train.nnx and features=True."
            )

        def summed(logits: Array) -> Array:
            rows = self.objective.value(loss_state, logits, labels, weights)
            return jnp.sum(jnp.where(weights > 0, rows, 0))

        features = at_least_float32(features)
        squared = jnp.sum(jnp.square(features.reshape(len(features), -1)), axis=1)
        gradient = jnp.linalg.norm(jax.grad(summed)(logits), axis=1) * jnp.sqrt(squared + 1)
        place = (jnp.log10(gradient) - DECADES[0]) * PER_DECADE
        cell = jnp.nan_to_num(jnp.clip(place, 0, _NUM_BINS - 1)).astype(jnp.int32)
        ones = jnp.ones_like(squared)
        norms = {"feature_norm": jnp.sqrt(squared), "last_gradient_norm": gradient}
        return Sums(
            {
                "weight": jnp.sum(weigh(ones, weights)),
                "histogram": class_sums(cell, weigh(ones, weights), _NUM_BINS),
                **{name: jnp.sum(weigh(values, weights)) for name, values in norms.items()},
            }
        )

    def means(self, stat: Sums) -> dict[str, float]:
        """Compute the mean norms of the inputs and of the gradients."""
        weight = max(float(stat["weight"]), 1e-30)
        return {name: float(stat[name]) / weight for name in ("feature_norm", "last_gradient_norm")}

    def weight_norm(self, params: PyTree) -> float:
        """Compute the Euclidean norm of the layer's weights, without the bias."""
        return float(jnp.linalg.norm(params[HEAD]["kernel"]))
