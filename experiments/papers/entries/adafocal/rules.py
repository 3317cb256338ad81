"""AdaFocal's update rule as the slides write it, and as the released code has it."""

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses
from experiments.papers.entry import computed
from experiments.papers.judge import limits
from experiments.papers.judge.rules import every
from experiments.papers.judge.values import Value


def update_by_gap() -> dict[str, Value]:
    """Compare log(gamma_t / gamma_(t-1)) with lambda (C - A)."""
    generator = np.random.default_rng(0)
    gamma = 10.0 ** generator.uniform(-2, 1, 1_000)
    gap = generator.uniform(-1, 1, 1_000)
    deviation, wrong = 0.0, 0
    with jax.enable_x64(True):
        for rate in (0.5, 1.0, 2.0):
            inputs = jnp.asarray(gamma), jnp.asarray(gap)
            new = np.asarray(losses.adafocal_rule(*inputs, rate=rate, rule="slides"))
            deviation = max(deviation, float(np.max(np.abs(np.log(new / gamma) - rate * gap))))
            wrong += int(np.sum(np.sign(new - gamma) != np.sign(gap)))
    return {
        "largest deviation from lambda (C - A)": Value(deviation, rows=3 * len(gap)),
        "updates in the wrong direction": Value(wrong, rows=3 * len(gap)),
    }


def signs() -> dict[str, Value]:
    """Run both rules from gamma = 1 under random and extreme gaps, and count changes of sign."""
    generator = np.random.default_rng(0)
    steps, bins = 50, 1_000
    gaps = generator.uniform(-1, 1, (steps, bins))
    gaps[:, :200] = -1.0  # as under-confident as a bin can be, at every update
    changes = {}
    with jax.enable_x64(True):
        for rule in ("slides", "released"):
            gamma, changed = np.ones(bins), 0
            for gap in gaps:
                inputs = jnp.asarray(gamma), jnp.asarray(gap)
                new = np.asarray(losses.adafocal_rule(*inputs, rule=rule))
                changed += int(np.sum(np.sign(new) != np.sign(gamma)))
                gamma = new
            changes[rule] = changed
    return {
        "changes of sign, rule as written": Value(
            changes["slides"], rows=steps * bins, note="gamma is multiplied by a positive number"
        ),
        "changes of sign, rule as released": Value(
            changes["released"], rows=steps * bins, note="it switches at |gamma| below 0.2"
        ),
    }


ENTRY = computed(
    {
        "adafocal-update-follows-miscalibration": (
            update_by_gap,
            every(
                limits.at_most(1e-9, "largest deviation from lambda (C - A)"),
                limits.at_most(0, "updates in the wrong direction"),
            ),
        ),
        "adafocal-loss-switches-sign": (signs, limits.above(0, "changes of sign, rule as written")),
        "adafocal-loss-switches-sign-released": (
            signs,
            limits.above(0, "changes of sign, rule as released"),
        ),
    }
)
