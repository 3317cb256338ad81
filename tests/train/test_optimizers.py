"""Optimisers against torch's rules, written down in NumPy."""

import jax
import numpy as np
import optax
import pytest

from calib_jax.train import optimizer

RANDOM = np.random.default_rng(0)
START = {"a": RANDOM.normal(size=(3, 2)), "b": RANDOM.normal(size=4)}
GRADIENTS = [
    {name: scale * RANDOM.normal(size=w.shape) for name, w in START.items()}
    for scale in (1.0, 0.01, 3.0, 0.0, 1.0)
]


def clip(gradient, limit):
    norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
    factor = limit / (norm + 1e-6)
    return {k: g * factor if factor < 1 else g for k, g in gradient.items()}


def sgd(w, g, memory, step, *, rate, momentum=0.9, nesterov=False):
    v = momentum * memory.get("v", 0) + g
    memory["v"] = v
    return w - rate * (g + momentum * v if nesterov else v)


def adam(w, g, memory, step, *, rate):
    memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * g
    memory["s"] = 0.999 * memory.get("s", 0) + 0.001 * g**2
    m, s = memory["m"] / (1 - 0.9**step), memory["s"] / (1 - 0.999**step)
    return w - rate * m / (np.sqrt(s) + 1e-8)


def adagrad(w, g, memory, step, *, rate):
    memory["s"] = memory.get("s", 0) + g**2
    return w - rate * g / (np.sqrt(memory["s"]) + 1e-10)


@pytest.mark.parametrize(
    ("name", "rule", "options"),
    [
        ("sgd", sgd, {}),
        ("sgd", sgd, {"momentum": 0.0}),
        ("sgd", sgd, {"momentum": 0.8, "nesterov": True}),
        ("adam", adam, {}),
        ("adagrad", adagrad, {}),
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("limit", [0.0, 2.0])
def test_the_rule_of_torch(name, rule, options, decay, limit, x64):
    tx = optimizer(name, 0.1, weight_decay=decay, clip_norm=limit, **options)
    params, state = START, tx.init(START)
    wanted, memory = dict(START), {k: {} for k in START}
    for step, gradient in enumerate(GRADIENTS, start=1):
        updates, state = tx.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        gradient = clip(gradient, limit) if limit else gradient
        for key, w in wanted.items():
            g = gradient[key] + decay * w
            wanted[key] = rule(w, g, memory[key], step, rate=0.1, **options)
    for key, w in wanted.items():
        np.testing.assert_allclose(params[key], w, rtol=1e-12, atol=1e-12)


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
