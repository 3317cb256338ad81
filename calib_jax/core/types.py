"""Types that all subpackages share: arrays with named shapes, statistics, training progress.

`*batch` stands for any number of leading axes, so that the same code serves examples, pixels and
tokens. The tests check these shapes at run time.
"""

import typing
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer, Real

Array: TypeAlias = jax.Array

if TYPE_CHECKING:

    class SupportsArray(Protocol):
        """An array of any library, such as JAX, NumPy, PyTorch or pandas."""

        def __array__(self) -> Any:
            """Convert to a NumPy array."""

    ArrayLike: TypeAlias = SupportsArray | list[Any]
else:
    ArrayLike: TypeAlias = Any  # other arrays are converted, or an error names them

Logits: TypeAlias = Float[Array, "*batch classes"]
Labels: TypeAlias = Integer[Array, "*batch"]
SoftLabels: TypeAlias = Real[Array, "*batch classes"]  # a distribution over the classes
AnyLabels: TypeAlias = Labels | SoftLabels
Weights: TypeAlias = Real[Array, "*batch"] | Bool[Array, "*batch"]
Batch: TypeAlias = tuple[Logits, AnyLabels, Weights | None]
PerExample: TypeAlias = Float[Array, "*batch"]
PerClass: TypeAlias = Float[Array, "*batch classes"]
Scalar: TypeAlias = Float[Array, ""]
Vector: TypeAlias = Float[Array, " rows"]

# A number that may be traced: hyperparameters are arguments, so one compilation serves many.
Number: TypeAlias = float | int | Array
# An option of a loss: a number, or one number per example.
Numbers: TypeAlias = Number | np.ndarray | list[Any] | tuple[Any, ...]
PyTree: TypeAlias = Any
AxisName: TypeAlias = str | None

_Stat = TypeVar("_Stat")


@typing.runtime_checkable
class Stat(Protocol):
    """A statistic that merges by `a + b`, and over devices by `a.all_reduce(axis_name)`."""

    def __add__(self: _Stat, other: _Stat) -> _Stat: ...

    def all_reduce(self: _Stat, axis_name: AxisName) -> _Stat:
        """Merge the statistics of all devices."""
        ...


class Progress(NamedTuple):
    """Training progress: steps done, epochs finished, epochs planned."""

    steps: Number
    epochs: Number
    num_epochs: Number


_Options = ParamSpec("_Options")
_Value = TypeVar("_Value", covariant=True)


@typing.runtime_checkable
class FunctionOfArrays(Protocol[_Options, _Value]):
    """A public function of logits and labels; arrays of other libraries are converted."""

    __name__: str

    def __call__(
        self, logits: ArrayLike, labels: ArrayLike, *args: _Options.args, **options: _Options.kwargs
    ) -> _Value:
        """Compute the value."""
        ...
