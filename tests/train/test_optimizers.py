"""Optimizers against torch's formulas written down in NumPy, and learning rates against theirs."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from calib_jax import train
from calib_jax.train import schedules
from tests.test_doctests import docstrings_of

FILE = pathlib.Path(__file__).parents[1] / "golden" / "recipes.json"
RECORDED = {one["id"]: one for one in json.loads(FILE.read_text(encoding="utf-8"))}

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
    @jax.jit
    def stepped(gradient, state, params):
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params, state = START, jax.jit(tx.init)(START)
    for step in range(STEPS):
        params, state = stepped(gradient_of(params, step), state, params)
    return params


def updated(tx, gradient):
    """Return the updates of the first step."""
    return jax.jit(lambda gradient: tx.update(gradient, tx.init(START), START)[0])(gradient)


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
    "head/*": {"learning_rate_factor": 0.1},
}


def test_twenty_steps_of_a_grouped_optimizer(x64):
    tx = train.grouped("sgd", 0.01, groups=GROUPS, momentum=0.8, weight_decay=0.1)
    default = {"rate": 0.01, "momentum": 0.8}
    settings = dict.fromkeys(PATHS, (sgd, 0.1, default))
    settings["embedding/table"] = (adam, 0.0, {"rate": 0.01, "b2": 0.9})
    settings["layer/bias"] = settings["head/bias"] = (sgd, 0.0, default)  # the first group wins
    settings["head/kernel"] = (sgd, 0.1, {"rate": 0.001, "momentum": 0.8})
    assert_near(trained(tx), expected(settings))
    scheduled = train.grouped(
        "sgd", lambda step: 0.01 + 0 * step, groups=GROUPS, momentum=0.8, weight_decay=0.1
    )
    assert_near(trained(scheduled), expected(settings))


def test_frozen_parameters_stay_and_do_not_count_in_the_norm(x64):
    frozen = {"embedding/*": {"frozen": True}}
    tx = train.grouped("sgd", 0.5, groups=frozen, momentum=0.0, clip_norm=0.5)
    gradient = gradient_of(START, 0)
    updates = updated(tx, gradient)
    rest = [path for path in PATHS if not path.startswith("embedding")]
    norm = np.sqrt(sum((leaf(gradient, path) ** 2).sum() for path in rest))
    assert norm > 0.5
    assert (leaf(updates, "embedding/table") == 0).all()
    for path in rest:
        wanted = -0.5 * 0.5 * leaf(gradient, path) / (norm + 1e-6)
        np.testing.assert_allclose(leaf(updates, path), wanted, rtol=1e-12)


def test_adamw_keeps_the_decay_out_of_the_moments(x64):
    tx, gradient = train.optimizer("adamw", 0.1, weight_decay=0.01), gradient_of(START, 0)
    updates = updated(tx, gradient)
    for path in PATHS:
        w, g = leaf(START, path), leaf(gradient, path)
        moved = adam(w, g, {}, 1, rate=0.1) - 0.1 * 0.01 * w
        np.testing.assert_allclose(w + leaf(updates, path), moved, rtol=1e-12)


def test_the_rate_may_follow_the_step(x64):
    tx = train.optimizer("sgd", lambda step: 0.1 / (1 + step), momentum=0.0)
    gradient, state, moved = gradient_of(START, 0), tx.init(START), []
    update = jax.jit(tx.update)
    for _ in range(3):
        updates, state = update(gradient, state, START)
        moved.append(leaf(updates, "head/kernel") / leaf(gradient, "head/kernel"))
    for result, rate in zip(moved, (0.1, 0.05, 0.1 / 3), strict=True):
        np.testing.assert_allclose(result, -rate)


@pytest.mark.parametrize("factor", [0.0, 0.01])
def test_a_small_gradient_is_not_clipped(factor, x64):
    tx = train.optimizer("sgd", 0.1, clip_norm=2.0)
    small = jax.tree.map(lambda w: factor * w, START)
    updates = updated(tx, small)
    for path in PATHS:
        np.testing.assert_allclose(leaf(updates, path), -0.1 * leaf(small, path), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_large_gradient_of_half_precision_is_clipped(dtype):
    gradient = {"w": jnp.full(1000, 100, dtype)}
    tx = train.optimizer("sgd", 1.0, clip_norm=2.0)
    clipped, _ = tx.update(gradient, tx.init(gradient), gradient)
    assert clipped["w"].dtype == dtype
    np.testing.assert_allclose(np.linalg.norm(np.asarray(clipped["w"], float)), 2, rtol=0.01)


def test_unknown_names_and_options():
    with pytest.raises(ValueError, match=r"optimizer must be one of .* got 'sdg'; did you mean"):
        train.optimizer("sdg", 0.1)
    with pytest.raises(TypeError, match="'adam' has no option 'momentum'"):
        train.optimizer("adam", 0.1, momentum=0.9)
    for name in ("adam", "adagrad"):
        with pytest.raises(ValueError, match="eps must be at least 0, got -1"):
            train.optimizer(name, 0.1, eps=-1)
    with pytest.raises(ValueError, match="clip_norm must be at least 0, got -1"):
        train.optimizer("sgd", 0.1, clip_norm=-1)
    with pytest.raises(ValueError, match=r"learning_rate must be at least 0, got -0\.1"):
        train.optimizer("sgd", -0.1)
    with pytest.raises(ValueError, match="weight_decay must be at least 0, got -1"):
        train.optimizer("adamw", 0.1, weight_decay=-1)
    for name, option, value in (("adam", "b1", -1), ("adamw", "b2", 1.0), ("sgd", "momentum", 1.5)):
        with pytest.raises(
            ValueError, match=rf"{option} must (be at least|be greater|lie in) .*got"
        ):
            train.optimizer(name, 0.1, **{option: value})
    for milestones in ((-1, 5), (-0.5,), (5, 5)):
        with pytest.raises(ValueError, match="milestone"):
            train.schedule("multi_step", 0.1, milestones=milestones)


# --------------------------------------------------------------------------------------------
# Learning rates.


@pytest.mark.parametrize(
    ("name", "milestones"),
    [("lr_cifar_fc", (149, 249)), ("lr_tiny_fc", (39, 59)), ("lr_cifar_ada", (150, 250))],
)
def test_the_recorded_schedules(name, milestones, x64):
    lengths, rates = zip(*RECORDED[name]["rates"], strict=True)
    wanted = np.repeat(rates, lengths)
    assert len(wanted) == RECORDED[name]["hyperparameters"]["epochs"]
    rate = schedules.multi_step(0.1, milestones=milestones)
    np.testing.assert_allclose(rate(np.arange(len(wanted))), wanted, rtol=1e-12)
    steps = schedules.of_steps(rate, 352, per_epoch=True)
    for epoch in (*milestones, len(wanted) - 1):
        for step in (352 * epoch - 1, 352 * epoch, 352 * epoch + 351):
            assert float(steps(step)) == pytest.approx(wanted[step // 352], rel=1e-12)


def test_closed_forms(x64):
    t = np.array([0.0, 2.5, 5.0, 10.0])
    np.testing.assert_allclose(schedules.constant(0.3)(t), 0.3)
    np.testing.assert_allclose(schedules.exponential(2.0, factor=0.9)(t), 2 * 0.9**t)
    cosine = schedules.cosine(0.4, num_epochs=10, final=0.1)
    np.testing.assert_allclose(cosine(t), [0.4, 0.1 + 0.3 * (1 + np.sqrt(0.5)) / 2, 0.25, 0.1])
    poly = schedules.poly(0.4, num_epochs=10, power=2)
    np.testing.assert_allclose(poly(t), [0.4, 0.4 * 0.75**2, 0.1, 0.0], atol=1e-15)
    assert float(cosine(12.0)) == pytest.approx(0.1)
    assert float(poly(12.0)) == 0
    np.testing.assert_allclose(schedules.multi_step(0.3, milestones=())(t), 0.3)
    early = schedules.multi_step(1.0, milestones=(0.5, 5))
    np.testing.assert_allclose(early(t), [1, 0.1, 0.01, 0.01])
    half = 0.25  # of half an epoch
    assert float(schedules.cosine(0.4, num_epochs=0.5)(half)) == pytest.approx(0.2)
    assert float(schedules.poly(0.4, num_epochs=0.5)(half)) == pytest.approx(0.4 * 0.5**0.9)
    assert float(schedules.inverse_sqrt(0.4, start=half)(1.0)) == pytest.approx(0.2)
    assert float(schedules.of_steps(poly, 1)(5)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("form", "wanted"), [("linear", [0.2, 0.6, 1.0, 1.0]), ("constant", [0.2, 0.2, 1.0, 1.0])]
)
def test_warm_up(form, wanted, x64):
    rate = schedules.warmed_up(schedules.constant(1.0), epochs=4, factor=0.2, form=form)
    np.testing.assert_allclose(rate(np.array([0.0, 2.0, 4.0, 5.0])), wanted)
    drop = schedules.warmed_up(schedules.multi_step(1.0, milestones=(5,)), epochs=4)
    np.testing.assert_allclose(drop(np.array([4.9, 5.0])), [1.0, 0.1])


def test_linear_and_inverse_square_root(x64):
    t = np.array([0.0, 2.5, 5.0, 10.0, 12.0])
    linear = train.schedule("linear", 0.4, num_epochs=10, final=0.1)
    np.testing.assert_allclose(linear(t), [0.4, 0.325, 0.25, 0.1, 0.1])
    # From 0 to the peak at 2, then down to 0 at 10.
    rising = train.warmed_up(
        train.schedule("linear", 0.4, num_epochs=10, start=2), epochs=2, factor=0
    )
    np.testing.assert_allclose(rising(np.array([0.0, 1, 2, 4, 10, 11])), [0, 0.2, 0.4, 0.3, 0, 0])
    decayed = train.schedule("inverse_sqrt", 0.4, start=2.5)
    np.testing.assert_allclose(decayed(t), [0.4, 0.4, 0.4 / np.sqrt(2), 0.2, 0.4 / np.sqrt(4.8)])
    transformer = train.warmed_up(train.schedule("inverse_sqrt", 1.0, start=4), epochs=4, factor=0)
    steps = np.arange(1, 20)
    wanted = 2 * np.minimum(steps**-0.5, steps * 4**-1.5)  # their equation 3, times sqrt(4)
    np.testing.assert_allclose(transformer(steps), wanted)


def test_warm_up_in_steps(x64):
    rate = train.of_steps(train.schedule("linear", 1.0, num_epochs=2), 10)
    warmed = train.warmed_up(rate, steps=4, factor=0.0)
    steps = np.arange(8)
    wanted = (1 - steps / 20) * np.minimum(steps / 4, 1)
    np.testing.assert_allclose(warmed(steps), wanted)
    assert train.warmed_up(rate, steps=0) is rate
    for both in ({}, {"epochs": 1, "steps": 2}):
        with pytest.raises(ValueError, match="give either epochs or steps"):
            train.warmed_up(rate, **both)


test_docstring = docstrings_of("train")
