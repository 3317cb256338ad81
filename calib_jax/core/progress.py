"""Training progress, the input of loss schedules."""

from typing import NamedTuple

from calib_jax.core.types import Number


class Progress(NamedTuple):
    """Training progress: steps done, epochs finished, epochs planned."""

    steps: Number
    epochs: Number
    num_epochs: Number
