"""Optimisers against torch's rules, written down in NumPy."""

import jax
import numpy as np
import pytest

from calib_jax.train import optimizer

RANDOM = np.random.default_rng(0)
START = {"a": RANDOM.normal(size=(3, 2)), "b": RANDOM.normal(size=4)}
GRADIENTS = [
    {name: scale * RANDOM.normal(size=w.shape) for name, w in START.items()}
    for scale in (1.0, 0.01, 3.0, 0.0, 1.0)
]


def adam(w, g, memory, step, *, rate):
    memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * g
    memory["s"] = 0.999 * memory.get("s", 0) + 0.001 * g**2
    m, s = memory["m"] / (1 - 0.9**step), memory["s"] / (1 - 0.999**step)
    return w - rate * m / (np.sqrt(s) + 1e-8)


def test_adamw_keeps_the_decay_out_of_the_moments(x64):
    tx = optimizer("adamw", 0.1, weight_decay=0.01)
    updates, _ = tx.update(GRADIENTS[0], tx.init(START), START)
    for key, w in START.items():
        moved = adam(w, GRADIENTS[0][key], {}, 1, rate=0.1) - 0.1 * 0.01 * w
        np.testing.assert_allclose(w + updates[key], moved, rtol=1e-12)


def test_the_rate_may_follow_the_step(x64):
    tx = optimizer("sgd", lambda step: 0.1 / (1 + step), momentum=0.0)
    state, moved = tx.init(START), []
    for _ in range(3):
        updates, state = tx.update(GRADIENTS[0], state, START)
        moved.append(updates["a"] / GRADIENTS[0]["a"])
    for result, rate in zip(moved, (0.1, 0.05, 0.1 / 3), strict=True):
        np.testing.assert_allclose(result, -rate)


def test_a_gradient_of_zero_is_not_clipped_to_nan():
    tx = optimizer("sgd", 0.1, clip_norm=2.0)
    zeros = jax.tree.map(np.zeros_like, START)
    updates, _ = tx.update(zeros, tx.init(START), START)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(updates))


def test_unknown_names_and_options():
    with pytest.raises(ValueError, match=r"optimizer must be one of .* got 'sdg'; did you mean"):
        optimizer("sdg", 0.1)
    with pytest.raises(TypeError, match="'adam' has no option 'momentum'"):
        optimizer("adam", 0.1, momentum=0.9)
    with pytest.raises(ValueError, match="clip_norm must be at least 0, got -1"):
        optimizer("sgd", 0.1, clip_norm=-1)
    with pytest.raises(ValueError, match=r"learning_rate must be at least 0, got -0\.1"):
        optimizer("sgd", -0.1)
    with pytest.raises(ValueError, match="weight_decay must be at least 0, got -1"):
        optimizer("adamw", 0.1, weight_decay=-1)
    with pytest.raises(ValueError, match=r"b2 must lie in \[0, 1\], got 2"):
        optimizer("adam", 0.1, b2=2)
