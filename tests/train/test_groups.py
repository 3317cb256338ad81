"""Every rule and a grouped optimizer against torch's documented formulas, written down in NumPy."""

import re

import numpy as np
import optax
import pytest

from calib_jax import train
from calib_jax.train.optimizers import labels_of

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


def adadelta(w, g, memory, t, *, rate, rho=0.9, eps=1e-6):
    memory["s"] = rho * memory.get("s", 0) + (1 - rho) * g * g
    step = np.sqrt(memory.get("d", 0) + eps) / np.sqrt(memory["s"] + eps) * g
    memory["d"] = rho * memory.get("d", 0) + (1 - rho) * step * step
    return w - rate * step


def rmsprop(w, g, memory, t, *, rate, alpha=0.99, eps=1e-8, momentum=0.0, centered=False):
    memory["s"] = alpha * memory.get("s", 0) + (1 - alpha) * g * g
    memory["m"] = alpha * memory.get("m", 0) + (1 - alpha) * g
    variance = memory["s"] - memory["m"] ** 2 if centered else memory["s"]
    memory["b"] = momentum * memory.get("b", 0) + g / (np.sqrt(variance) + eps)
    return w - rate * memory["b"]


def adamax(w, g, memory, t, *, rate, b1=0.9, b2=0.999, eps=1e-8):
    memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
    memory["u"] = np.maximum(b2 * memory.get("u", 0), np.abs(g) + eps)
    return w - rate / (1 - b1**t) * memory["m"] / memory["u"]


RULES = {
    **{"sgd": sgd, "adam": adam, "adagrad": adagrad, "adadelta": adadelta, "rmsprop": rmsprop},
    "adamax": adamax,
}
CASES = [
    ("sgd", {"momentum": 0.8}),
    ("adam", {"b1": 0.8, "b2": 0.99, "eps": 1e-6}),
    ("adagrad", {}),
    ("adagrad", {"eps": 1e-6, "rate_decay": 0.1, "initial_accumulator": 0.5}),
    ("adadelta", {}),
    ("adadelta", {"rho": 0.8, "eps": 1e-4}),
    ("rmsprop", {}),
    ("rmsprop", {"alpha": 0.9, "eps": 1e-6, "momentum": 0.7, "centered": True}),
    ("adamax", {}),
    ("adamax", {"b1": 0.8, "b2": 0.99, "eps": 1e-6}),
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
    "embedding/*": {"name": "adamax", "weight_decay": 0.0, "b2": 0.9},
    "*/bias": {"weight_decay": 0.0},
    "head/*": {"learning_rate_factor": 10.0},
}


def test_twenty_steps_of_a_grouped_optimizer(x64):
    tx = train.grouped("sgd", 0.01, groups=GROUPS, momentum=0.8, weight_decay=0.1)
    default = {"rate": 0.01, "momentum": 0.8}
    settings = dict.fromkeys(PATHS, (sgd, 0.1, default))
    settings["embedding/table"] = (adamax, 0.0, {"rate": 0.01, "b2": 0.9})
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


def test_a_schedule_reaches_every_group(x64):
    tx = train.grouped(
        "sgd",
        lambda step: 1.0 / (1 + step),
        groups={"head/*": {"learning_rate_factor": 3.0}},
        momentum=0.0,
    )
    state, gradient = tx.init(START), gradient_of(START, 0)
    for rate in (1.0, 0.5):
        updates, state = tx.update(gradient, state, START)
        for path in PATHS:
            factor = 3 if path.startswith("head") else 1
            np.testing.assert_allclose(leaf(updates, path), -rate * factor * leaf(gradient, path))


def test_a_pattern_that_matches_nothing_shows_the_paths():
    for patterns, reason in (
        (["embd*"], "matches no parameter"),
        (["*", "head/*"], "matches only parameters of the groups before it"),
    ):
        with pytest.raises(ValueError, match=f"{re.escape(patterns[-1])}.* {reason}") as raised:
            labels_of(START, patterns)
        assert str(raised.value).endswith(
            "There are: embedding/table, head/bias, head/kernel, layer/bias, layer/kernel."
        )
    tx = train.grouped("sgd", 0.1, groups={"embd*": {"frozen": True}})
    with pytest.raises(
        ValueError, match="'embd\\*' of the optimizer's groups matches no parameter"
    ):
        tx.init(START)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_dekay": 0.0}, "'weight_dekay' .*did you mean 'weight_decay'"),
        ({"clip_norm": 1.0}, "the group 'head/\\*' of the optimizer has no option 'clip_norm'"),
        ({"b1": 0.9}, "has no option 'b1'"),
        ({"name": "adamaxx"}, "did you mean 'adamax'"),
        ({"frozen": True, "weight_decay": 0.1}, "is frozen, so it takes no other settings"),
        ({"learning_rate_factor": -1.0}, "learning_rate_factor must be at least 0"),
    ],
)
def test_bad_settings_of_a_group(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        train.grouped("sgd", 0.1, groups={"head/*": settings})


TORCH = {
    "sgd": ("SGD", {"momentum": "momentum"}),
    "adam": ("Adam", {}),
    "adagrad": (
        "Adagrad",
        {"rate_decay": "lr_decay", "initial_accumulator": "initial_accumulator_value"},
    ),
    "adadelta": ("Adadelta", {}),
    "rmsprop": ("RMSprop", {}),
    "adamax": ("Adamax", {}),
    "adamw": ("AdamW", {}),
}


@pytest.fixture
def torch(x64):
    """Import torch in double precision."""
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)


def in_torch(torch, optimizer, tensors):
    """Train the tensors of all paths for the same steps with torch."""
    for step in range(STEPS):
        params = {outer: {} for outer in START}
        for path, tensor in tensors.items():
            outer, inner = path.split("/")
            params[outer][inner] = tensor.detach().numpy().copy()
        gradient = gradient_of(params, step)
        for path, tensor in tensors.items():
            if tensor.requires_grad:
                tensor.grad = torch.tensor(leaf(gradient, path))
        optimizer.step()
    return {path: tensor.detach().numpy() for path, tensor in tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*CASES, ("adamw", {"b1": 0.8, "eps": 1e-6})])
def test_twenty_steps_in_torch(name, options, torch):
    named, spelled = TORCH[name]
    theirs = {spelled.get(key, key): value for key, value in options.items()}
    if name in ("adam", "adamax", "adamw"):
        betas = theirs.pop("b1", 0.9), theirs.pop("b2", 0.999)
        theirs["betas"] = betas
    tensors = {path: torch.tensor(leaf(START, path), requires_grad=True) for path in PATHS}
    optimizer = getattr(torch.optim, named)(tensors.values(), lr=0.05, weight_decay=0.01, **theirs)
    wanted = in_torch(torch, optimizer, tensors)
    params = trained(train.optimizer(name, 0.05, weight_decay=0.01, **options))
    for path in PATHS:
        np.testing.assert_allclose(leaf(params, path), wanted[path], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_groups_in_torch(torch):
    tensors = {path: torch.tensor(leaf(START, path), requires_grad=True) for path in PATHS}
    tensors["embedding/table"].requires_grad = False
    biases = [tensors[path] for path in PATHS if path.endswith("bias")]
    optimizer = torch.optim.AdamW(
        [
            {"params": [tensors["layer/kernel"]]},
            {"params": biases, "weight_decay": 0.0},
            {"params": [tensors["head/kernel"]], "lr": 0.1},
        ],
        lr=0.01,
        weight_decay=0.1,
    )
    wanted = in_torch(torch, optimizer, tensors)
    groups = GROUPS | {"embedding/*": {"frozen": True}}
    params = trained(train.grouped("adamw", 0.01, groups=groups, weight_decay=0.1))
    for path in PATHS:
        np.testing.assert_allclose(leaf(params, path), wanted[path], rtol=1e-9, atol=1e-9)
