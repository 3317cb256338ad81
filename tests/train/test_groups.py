"""Every rule and a grouped optimizer against torch's documented formulas, written down in NumPy."""

import numpy as np
import optax
import pytest

from calib_jax import train

STEPS = 20
RANDOM = np.random.default_rng(0)
START = {
    "embedding": {"table": RANDOM.normal(size=(3, 2))},
    "layer": {"kernel": RANDOM.normal(size=(2, 2)), "bias": RANDOM.normal(size=2)},
    "head": {"kernel": RANDOM.normal(size=4), "bias": RANDOM.normal(size=1)},
}
PATHS = [f"{outer}/{inner}" for outer, inners in START.items() for inner in inners]


def leaf(tree, path):
    outer, inner = path.split("/")
    return np.asarray(tree[outer][inner])


def gradient_of(params, step):
    """Return gradients that depend on the parameters, and some that are 0."""
    scale = (1.0, 0.03, 4.0, 0.0)[step % 4]
    return {
        outer: {
            inner: scale * (np.sin(3 * np.asarray(w) + step) + 0.1 * w)
            for inner, w in inners.items()
        }
        for outer, inners in params.items()
    }


# Each rule takes parameters, gradient, its memory and the step (from 1), as in torch's documents.
def sgd(w, g, memory, t, *, rate, momentum=0.9):
    memory["v"] = momentum * memory.get("v", 0) + g
    return w - rate * memory["v"]


def adam(w, g, memory, t, *, rate, b1=0.9, b2=0.999, eps=1e-8):
    memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
    memory["s"] = b2 * memory.get("s", 0) + (1 - b2) * g * g
    return w - rate * memory["m"] / (1 - b1**t) / (np.sqrt(memory["s"] / (1 - b2**t)) + eps)


def adagrad(w, g, memory, t, *, rate, eps=1e-10, rate_decay=0.0, initial_accumulator=0.0):
    memory["s"] = memory.get("s", initial_accumulator) + g * g
    return w - rate / (1 + (t - 1) * rate_decay) * g / (np.sqrt(memory["s"]) + eps)


RULES = {"sgd": sgd, "adam": adam, "adagrad": adagrad}
CASES = [
    ("sgd", {"momentum": 0.8}),
    ("adam", {"b1": 0.8, "b2": 0.99, "eps": 1e-6}),
    ("adagrad", {}),
    ("adagrad", {"eps": 1e-6, "rate_decay": 0.1, "initial_accumulator": 0.5}),
]


def trained(tx):
    params, state = START, tx.init(START)
    for step in range(STEPS):
        updates, state = tx.update(gradient_of(params, step), state, params)
        params = optax.apply_updates(params, updates)
    return params


def expected(settings):
    """Train in NumPy; the settings of each path are a rule, a weight decay and options."""
    params = {outer: dict(inners) for outer, inners in START.items()}
    memory = {path: {} for path in PATHS}
    for step in range(STEPS):
        gradient = gradient_of(params, step)
        for path in PATHS:
            rule, decay, options = settings[path]
            outer, inner = path.split("/")
            w = params[outer][inner]
            g = gradient[outer][inner] + decay * w
            params[outer][inner] = rule(w, g, memory[path], step + 1, **options)
    return params


def assert_near(params, wanted):
    for path in PATHS:
        np.testing.assert_allclose(leaf(params, path), leaf(wanted, path), rtol=1e-9, atol=1e-9)
        assert np.isfinite(leaf(params, path)).all()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_twenty_steps_are_torchs(name, options, x64):
    params = trained(train.optimizer(name, 0.05, weight_decay=0.01, **options))
    rule = (RULES[name], 0.01, {"rate": 0.05, **options})
    wanted = expected(dict.fromkeys(PATHS, rule))
    assert_near(params, wanted)


GROUPS = {
    "embedding/*": {"name": "adam", "weight_decay": 0.0, "b2": 0.9},
    "*/bias": {"weight_decay": 0.0},
    "head/*": {"learning_rate_factor": 10.0},
}


def test_twenty_steps_of_a_grouped_optimizer(x64):
    tx = train.grouped("sgd", 0.01, groups=GROUPS, momentum=0.8, weight_decay=0.1)
    default = {"rate": 0.01, "momentum": 0.8}
    settings = dict.fromkeys(PATHS, (sgd, 0.1, default))
    settings["embedding/table"] = (adam, 0.0, {"rate": 0.01, "b2": 0.9})
    settings["layer/bias"] = settings["head/bias"] = (sgd, 0.0, default)  # the first group wins
    settings["head/kernel"] = (sgd, 0.1, {"rate": 0.1, "momentum": 0.8})
    assert_near(trained(tx), expected(settings))


def test_frozen_parameters_stay_and_do_not_count_in_the_norm(x64):
    frozen = {"embedding/*": {"frozen": True}}
    tx = train.grouped("sgd", 0.5, groups=frozen, momentum=0.0, clip_norm=1.0)
    gradient = gradient_of(START, 0)
    updates, _ = tx.update(gradient, tx.init(START), START)
    rest = [path for path in PATHS if not path.startswith("embedding")]
    norm = np.sqrt(sum((leaf(gradient, path) ** 2).sum() for path in rest))
    assert norm > 1
    assert (leaf(updates, "embedding/table") == 0).all()
    for path in rest:
        wanted = -0.5 * leaf(gradient, path) / (norm + 1e-6)
        np.testing.assert_allclose(leaf(updates, path), wanted, rtol=1e-12)
