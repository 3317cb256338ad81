"""How far training has come: what schedules of losses are told."""

from typing import NamedTuple

from calib_jax.core.types import Number


class Progress(NamedTuple):
    """How far training has come: steps done, epochs finished, epochs planned."""

    steps: Number
    epochs: Number
    num_epochs: Number
