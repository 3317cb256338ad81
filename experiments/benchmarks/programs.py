"""What a compiled program says about itself, without being run: bytes, memory, operations.

    compiled = jax.jit(step).lower(*arguments).compile()
    collective_bytes(compiled).per_step   # that cross devices
    memory(compiled)                      # arguments, results, what lies between
    flops(compiled)                       # as XLA counts them
    training_flops(network, (32, 32, 3))  # as the mathematics does, whatever the device

Counts are of one device. They say what a program was compiled to, for as many devices as it was
given, real or faked, and for their backend: a CPU exchanges bfloat16 as float32, for one.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

__all__ = [
    "Collective",
    "Memory",
    "Traffic",
    "collective_bytes",
    "collectives",
    "flops",
    "forward_flops",
    "memory",
    "multiply_adds",
    "training_flops",
]

from calib_jax import train

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


class Collective(NamedTuple):
    """One operation between devices.

    Attributes:
      kind: one of `KINDS`; an asynchronous pair of start and end is one operation.
      source: what it came from, as JAX names it: "jit(step)/ResNet/norm/psum".
      payload: bytes, each time it is executed; see `collective_bytes`.
      times: how often one trip of the loops named in `loops` executes it, that is the product of
        the lengths, where they are known, of the loops between.
      loops: the loops around it whose length only the run will know, the outermost first.
    """

    kind: str
    source: str
    payload: int
    times: int
    loops: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes by kind of operation, apart for every loop whose length is not known.

    Attributes:
      outside: what one execution of the program moves outside such loops.
      inside: for each such loop, by the names of those around it and its own, what one trip of it
        moves, without the loops of this sort inside.
    """

    outside: Mapping[str, int]
    inside: Mapping[tuple[str, ...], Mapping[str, int]]

    @property
    def per_call(self) -> int:
        """Bytes of one execution that no loop of unknown length repeats."""
        return sum(self.outside.values())

    @property
    def per_step(self) -> int:
        """Bytes of one step: of a trip of the one loop over steps, or of a program without one."""
        if len(self.inside) > 1:
            names = ["/".join(loops) for loops in self.inside]
            raise ValueError(
                f"{len(names)} loops of unknown length exchange data ({', '.join(names)}), so that"
                " a step may be a trip of any: take it from inside."
            )
        for kinds in self.inside.values():
            return sum(kinds.values())
        return self.per_call


def collective_bytes(compiled: Any) -> Traffic:
    r"""Count the bytes that cross devices, from the text of a compiled program.

    What counts is the payload $s$ of an operation, the larger of what one device gives and what
    it gets: the array that is summed (all-reduce), put together (all-gather), summed and cut
    (reduce-scatter: the array before the cut), passed on (collective-permute) or exchanged
    (all-to-all). It does not depend on how the devices do it. Of $n$ devices in a ring each sends
    $2 s (n - 1) / n$ for an all-reduce, $s (n - 1) / n$ for an all-gather, a reduce-scatter or an
    all-to-all, and $s$ for a permutation.

    A loop of known length counts that often, and one of unknown length by the trip, apart (see
    `Traffic`). Of a conditional all branches count. What is the same in every trip XLA may take
    out of a loop: the text says what was compiled.

    Args:
      compiled: of `jax.jit(f).lower(...).compile()`, or `jax.pmap`.
    """
    outside: Counter[str] = Counter()
    inside: dict[tuple[str, ...], Counter[str]] = {}
    for found in collectives(compiled):
        into = inside.setdefault(found.loops, Counter()) if found.loops else outside
        into[found.kind] += found.payload * found.times
    return Traffic(dict(outside), {loops: dict(kinds) for loops, kinds in inside.items()})


def collectives(compiled: Any) -> list[Collective]:
    """List the operations between devices, in the order of the text from the entry on.

    Args:
      compiled: as `collective_bytes` takes it, or the text itself.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    computations, entry = _parsed(text)
    return list(_met(computations, entry, 1, ()))


class _Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    rest: str  # from the operands on


_Computations = dict[str, dict[str, _Instruction]]

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_NAMED = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|\w+_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([^\]]*)\]")
_SOURCE = re.compile(r'op_name="([^"]*)"')
_BITS = {"pred": 8, "token": 0, "opaque": 0}  # other types have them in their names


def _parsed(text: str) -> tuple[_Computations, str]:
    """Cut the text of a program into computations, and find the first."""
    computations: _Computations = {}
    inside: dict[str, _Instruction] = {}
    entry = ""
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if header := _HEADER.match(line):
            inside = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif found := _NAMED.match(line):
            shape, rest = _shape_first(found[2])
            opcode, _, rest = rest.partition("(")
            inside[found[1]] = _Instruction(found[1], shape, opcode.strip(), rest)
    if not entry:
        raise ValueError("this is no text of a compiled program: no computation is its ENTRY.")
    return computations, entry


def _met(
    computations: _Computations, name: str, times: int, loops: tuple[str, ...]
) -> Iterator[Collective]:
    """Walk through a computation and all that it calls."""
    for found in computations[name].values():
        kind = found.opcode.removesuffix("-start")
        if kind in KINDS:
            source = _SOURCE.search(found.rest)
            payload = _payload(computations[name], found)
            yield Collective(kind, source[1] if source else found.name, payload, times, loops)
            continue  # what it applies adds two numbers
        if found.opcode.endswith(("-done", "-update")):
            continue  # the end of what has been met at its start
        called = _CALLED.findall(found.rest)
        for branches in _BRANCHES.findall(found.rest):
            called += [branch.strip().lstrip("%") for branch in branches.split(",")]
        more, around = times, loops
        if found.opcode == "while":
            trips = _TRIPS.search(found.rest)
            more, around = (times * int(trips[1]), loops) if trips else (1, (*loops, found.name))
        for other in called:
            yield from _met(computations, other, more, around)


def _payload(near: Mapping[str, _Instruction], found: _Instruction) -> int:
    """Find the larger of the sizes of what goes in and of what comes out."""
    words = re.findall(r"[\w.\-]+", _balanced("(" + found.rest))
    given = sum(_size(near[word].shape) for word in words if word in near)
    got = _size(found.shape)
    parts = _parts(found.shape)
    if found.opcode in ("all-gather-start", "collective-permute-start") and len(parts) > 1:
        got = _size(parts[1])  # it returns its operands, its results and what it waits for
    return max(given, got)


def _size(shape: str) -> int:
    """Count the bytes of an array, or of all arrays of a tuple."""
    total = 0
    for kind, digits, sizes in _ARRAY.findall(shape):
        bits = _BITS[kind] if kind in _BITS else int(digits)
        numbers = [int(size.removeprefix("<=")) for size in sizes.split(",") if size.strip()]
        total += math.ceil(math.prod(numbers) * bits / 8)
    return total


def _shape_first(text: str) -> tuple[str, str]:
    """Split what follows the name of an instruction behind its shape."""
    shape = _balanced(text) if text.startswith("(") else text.partition(" ")[0]
    return shape, text[len(shape) :].lstrip()


def _balanced(text: str) -> str:
    """Cut a text behind the bracket that closes its first."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if not depth:
            return text[: place + 1]
    raise ValueError(f"the brackets of {text[:60]!r} are not closed.")


def _parts(shape: str) -> list[str]:
    """Split a tuple of shapes at its outermost commas."""
    parts, depth = [""], 0
    for letter in shape.removeprefix("(").removesuffix(")") if shape.startswith("(") else shape:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


class Memory(NamedTuple):
    """Bytes on one device.

    Attributes:
      arguments: of what the program is given.
      results: of what it returns.
      temporaries: of what it needs between.
      code: of the program.
      aliased: of the results that take the place of donated arguments, which both counts have.
    """

    arguments: int
    results: int
    temporaries: int
    code: int
    aliased: int

    @property
    def peak(self) -> int:
        """Bytes that must be free for a run: all but what is counted twice."""
        return self.arguments + self.results + self.temporaries + self.code - self.aliased


def memory(compiled: Any) -> Memory | None:
    """Return what a program needs, by XLA's own plan; None where the backend makes none."""
    plan = train.memory.plan_of(compiled)
    if plan is None:
        return None
    return Memory(
        arguments=plan.argument_size_in_bytes,
        results=plan.output_size_in_bytes,
        temporaries=plan.temp_size_in_bytes,
        code=plan.generated_code_size_in_bytes,
        aliased=plan.alias_size_in_bytes,
    )


def flops(compiled: Any) -> float | None:
    """Return XLA's count of floating-point operations; None where the backend makes none.

    It counts the body of a loop once, however long the loop, leaves out of a convolution what
    falls on its padding, counts activations that are computed again, and may not know what a
    library does that is called. For the utilisation of a device take `training_flops`.
    """
    try:
        found = compiled.cost_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None
    if isinstance(found, Sequence):
        found = found[0] if found else None
    return None if not found or "flops" not in found else float(found["flops"])


def multiply_adds(function: Callable[..., Any], *arguments: Any) -> int:
    """Count the multiplications of all convolutions and matrix products of a function.

    Each comes with one addition, so two operations. Windows count whole, where they reach over
    the padding, too, as in published counts. Of a conditional the dearest branch counts.

    Args:
      function: of arrays. It is traced, not run.
      arguments: arrays, or what has their shapes.
    """
    return _multiply_adds(jax.make_jaxpr(function)(*arguments).jaxpr)


def _multiply_adds(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        kind, options = equation.primitive.name, equation.params
        if kind == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            features = kernel[options["dimension_numbers"].rhs_spec[0]]
            total += equation.outvars[0].aval.size * math.prod(kernel) // features
        elif kind == "dot_general":
            left, (axes, _) = equation.invars[0].aval.shape, options["dimension_numbers"][0]
            total += equation.outvars[0].aval.size * math.prod(left[axis] for axis in axes)
        else:
            inner = [_multiply_adds(found) for found in _inside(options)]
            if kind == "while" and any(inner):
                raise ValueError(
                    "a loop of unknown length multiplies matrices, so that they cannot be counted:"
                    " give the loop a length (lax.scan), or count its body."
                )
            total += max(inner, default=0) * (options["length"] if kind == "scan" else 1)
    return total


def _inside(options: Mapping[str, Any]) -> Iterator[Any]:
    """Find the programs that an operation is made of."""
    for value in options.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part


def forward_flops(network: nn.Module, shape: Sequence[int]) -> int:
    """Count the operations that convolutions and dense layers need for one example.

    Args:
      network: called `network(inputs, train=...)`.
      shape: of an example.
    """
    example = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    variables = jax.eval_shape(partial(network.init, train=False), jax.random.key(0), example)
    return 2 * multiply_adds(partial(network.apply, train=False), variables, example)


def training_flops(network: nn.Module, shape: Sequence[int]) -> int:
    """Count the operations of a training step for one example: three times the forward pass.

    The backward pass makes two products of the size of each of the forward pass: the gradient of
    the weights and that of the inputs. (That of the images themselves nobody needs; the usual
    counts have it nevertheless.) Divided by the time of a step and the peak of the device it is
    the utilisation of the device by the model, which recomputed activations do not raise.
    """
    return 3 * forward_flops(network, shape)
