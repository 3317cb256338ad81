r"""Schedules of the learning rate.

    rate = train.schedule("multi_step", 0.1, milestones=(150, 250))
    rate(149.9), rate(150.0)                              # 0.1, 0.01
    rate = train.of_steps(rate, steps_per_epoch=352)      # a function of the step, for an optimizer

A schedule is a function of the number of epochs done, $t \in [0, E]$. The papers change the rate
only between epochs; `of_steps(..., per_epoch=True)` does so for any schedule. Compositions of these
functions are schedules too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks

Schedule = Callable[[Any], Any]


def constant(rate: float) -> Schedule:
    """Build a constant schedule."""
    return lambda t: jnp.full(jnp.shape(t), rate, float)


def multi_step(rate: float, *, milestones: Sequence[float], factor: float = 0.1) -> Schedule:
    r"""Multiply the rate by a factor at each milestone: $\eta f^{\#\{m : m \le t\}}$.

    The first epoch with the lower rate is the milestone itself, counted from 0. One of the papers'
    programs steps its schedule before the epoch and so drops the rate one epoch earlier: use
    milestones (149, 249) instead of (150, 250) to reproduce it.

    References:
      Mukhoti et al. 2020, section 5: 0.1, dropped at epochs 150 and 250 of 350.
    """
    checks.at_least("factor", factor, 0)
    if np.ndim(milestones) != 1:
        raise TypeError(f"milestones must be epochs, such as (150, 250), got {milestones!r}.")
    if len(milestones):
        checks.ascending("milestones", milestones)
        checks.at_least("the first milestone", milestones[0], 0)

    def stepped(t: Any) -> Any:
        t = jnp.asarray(t)
        passed = sum((t >= milestone).astype(float) for milestone in milestones)
        return rate * jnp.power(factor, passed + jnp.zeros(t.shape))

    return stepped


def exponential(rate: float, *, factor: float) -> Schedule:
    r"""Multiply the rate by a factor per epoch: $\eta f^t$."""
    checks.at_least("factor", factor, 0)
    return lambda t: rate * jnp.power(factor, jnp.asarray(t, float))


def cosine(rate: float, *, num_epochs: float, final: float = 0.0) -> Schedule:
    r"""Decay the rate along half a cosine: $\eta_E + (\eta - \eta_E) (1 + \cos \pi t / E) / 2$."""
    checks.at_least("final", final, 0)
    checks.above("num_epochs", num_epochs, 0)
    return lambda t: final + (rate - final) * (1 + jnp.cos(jnp.pi * _share(t, num_epochs))) / 2


def poly(rate: float, *, num_epochs: float, power: float = 0.9) -> Schedule:
    r"""Decay the rate polynomially: $\eta (1 - t / E)^p$.

    References:
      Chen et al. 2018, DeepLab. (The released recall loss also uses it, but changes the rate only
      at multiples of the last step.)
    """
    checks.above("num_epochs", num_epochs, 0)
    checks.at_least("power", power, 0)
    return lambda t: rate * jnp.power(1 - _share(t, num_epochs), power)


def linear(rate: float, *, num_epochs: float, final: float = 0.0, start: float = 0.0) -> Schedule:
    r"""Decay the rate linearly from T: $\eta_E + (\eta - \eta_E) (1 - (t - T) / (E - T))$.

    With `warmed_up(..., epochs=T, factor=0)` this is the usual schedule for fine-tuning BERT.

    Args:
      rate: $\eta$, the rate until T.
      num_epochs: E.
      final: $\eta_E$.
      start: T, where the decay starts.
    """
    checks.at_least("final", final, 0)
    checks.at_least("start", start, 0)
    checks.above("num_epochs", num_epochs, start)
    share = lambda t: _share(jnp.asarray(t, float) - start, num_epochs - start)  # noqa: E731
    return lambda t: final + (rate - final) * (1 - share(t))


def inverse_sqrt(rate: float, *, start: float) -> Schedule:
    r"""Decay the rate by the inverse square root: $\eta \sqrt{T / \max(t, T)}$.

    With `warmed_up(..., epochs=T, factor=0)` this is the schedule of the Transformer.

    Args:
      rate: $\eta$, the rate until T.
      start: T, where the decay starts.

    References:
      Vaswani et al. 2017, Attention Is All You Need, equation 3.
    """
    checks.above("start", start, 0)
    return lambda t: rate * jnp.sqrt(start / jnp.maximum(jnp.asarray(t, float), start))


_ALL = (constant, multi_step, exponential, cosine, poly, linear, inverse_sqrt)
SCHEDULES: dict[str, Callable[..., Schedule]] = {build.__name__: build for build in _ALL}


def schedule(name: str, rate: float, **options: Any) -> Schedule:
    """Build a schedule by name; `SCHEDULES` maps each name to its function."""
    checks.one_of("schedule", name, SCHEDULES)
    checks.at_least("rate", rate, 0)
    checks.check_options(name, SCHEDULES[name], options)
    return SCHEDULES[name](rate, **options)


def _share(t: Any, num_epochs: float) -> Any:
    return jnp.clip(jnp.asarray(t, float) / num_epochs, 0, 1)


def warmed_up(
    schedule: Schedule,
    *,
    epochs: float | None = None,
    steps: float | None = None,
    factor: float = 0.2,
    form: str = "linear",
) -> Schedule:
    r"""Scale the rate of the first W epochs by $f + (1 - f) t / W$ ("linear") or f ("constant").

    Args:
      schedule: the schedule to scale; its epochs include the warm-up.
      epochs: the warm-up length W; 0 disables warm-up.
      steps: W for a schedule that is a function of the step, such as the result of `of_steps`.
      factor: the initial factor f.
      form: "linear" or "constant".
    """
    if (epochs is None) == (steps is None):
        raise ValueError(f"give either epochs or steps, got epochs={epochs} and steps={steps}.")
    checks.one_of("form", form, ("linear", "constant"))
    unit, length = ("epochs", epochs) if steps is None else ("steps", steps)
    assert length is not None
    checks.at_least(unit, length, 0)
    checks.at_least("factor", factor, 0)
    if length == 0:
        return schedule

    def warmed(t: Any) -> Any:
        passed = jnp.asarray(t, float)
        rising = factor + (1 - factor) * passed / length if form == "linear" else factor
        return schedule(t) * jnp.where(passed < length, rising, 1)

    return warmed


def of_steps(
    schedule: Schedule, steps_per_epoch: int, *, per_epoch: bool = False
) -> Callable[[Any], Any]:
    """Convert a schedule to a function of the step, for optimizers.

    Args:
      schedule: the schedule, a function of epochs.
      steps_per_epoch: the number of batches in an epoch.
      per_epoch: change the rate between epochs only.
    """
    checks.at_least("steps_per_epoch", steps_per_epoch, 1)

    def rate(step: Any) -> Any:
        # Integer division keeps epochs exact: step 52,800 at 352 steps per epoch is epoch 150.
        step = jnp.asarray(step)
        epoch = (step // steps_per_epoch).astype(float)
        if per_epoch:
            return schedule(epoch)
        return schedule(epoch + (step % steps_per_epoch).astype(float) / steps_per_epoch)

    return rate
