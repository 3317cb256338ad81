"""The laws: what is promised of every objective, run over every one that the catalogue finds.

That values and gradients are those of the plain formulas is proven beside each family's
reference; here stands what must hold whatever the formula.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from calib_jax import losses
from tests.options import assert_recorded
from tests.test_doctests import docstrings_of

from .members import (
    COUPLED,
    DEFAULTS,
    MEMBERS,
    OF_IMAGES,
    PROGRESS,
    batch,
    compiled_terms_and_gradient,
    every,
    initial_state,
    total,
    trained_state,
    updated,
    value_and_gradient,
)

every_member = every(MEMBERS)
every_objective = every(DEFAULTS)


def is_coupled(member):
    return member.name in COUPLED or member.options.get("normalized", False)


def scale_of(gradient):
    return max(np.abs(np.asarray(gradient)).max(), 1e-6)


def assert_close(actual, expected, tolerance=1e-5):
    """Compare trees leaf by leaf, to a tolerance relative to the leaf's largest finite entry."""
    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        b = np.asarray(b)  # whose operations need no program for each shape
        size = float(np.abs(b).max(initial=1.0, where=np.isfinite(b)))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * size)


INF = np.inf


def like_a_batch(rows, truth):
    """Repeat rows and the last class until they have the shape of `batch`, to share programs."""
    index = np.resize(np.arange(len(rows)), 16)
    wider = np.pad(np.array(rows), ((0, 0), (0, 2)), mode="edge")
    return wider[index], np.array(truth)[index]


EXTREMES = {
    "all at once": like_a_batch(
        [
            *([30.0, -30.0, 0.0], [-80.0, 80.0, 1.0]),  # p -> 0
            *([30.0, -30.0, 0.0], [-80.0, 80.0, 1.0]),  # p -> 1
            *([60.0, 0.01, -0.01], [60.0, 0.01, -0.01]),  # one-hot to machine precision
            *([1e4, -1e4, 0.0], [1e4, -1e4, 0.0], [1e4, 1e4, -1e4]),
            *([0.0, 0.0, 0.0], [7.0, 7.0, 7.0]),  # no prediction at all
        ],
        [1, 0, 0, 1, 0, 2, 0, 1, 2, 0, 2],
    ),
    "an impossible class": like_a_batch([[1.0, -INF, 0.0], [0.0, -INF, -INF]], [0, 0]),
    "all right": like_a_batch([[9.0, 1.0, 0.0], [0.0, 200.0, -200.0]], [0, 1]),
    # Of one example each: programs are compiled for a shape.
    "two classes, right": ([[50.0, -50.0]], [0]),
    "two classes, equal": ([[0.0, 0.0]], [1]),
    "two classes, wrong": ([[-300.0, 300.0]], [0]),
}
# To give weight to an impossible class, or bound its logit, is infinitely wrong, and honestly so.
WEIGH_EVERY_CLASS = {"label_smoothing", "margin_smoothing", "max_suppression"}
# A constant added to all logits changes the norm that it divides by.
OF_THE_NORM = {"logit_norm"}


def terms_and_gradient(objective, state, logits, labels):
    terms, back = jax.vjp(lambda z: objective.value(state, z, labels, None), logits)
    return terms, back(jnp.ones_like(terms))[0]


@every_member
def test_finite_at_the_extremes(member):
    """Check it eager and compiled; the one program also shows that both ways agree elsewhere."""
    objective = member.objective
    for dtype in ["float32"] if member.options else ["float32", "float16"]:
        for case, (rows, truth) in EXTREMES.items():
            if case == "an impossible class" and member.name in WEIGH_EVERY_CLASS:
                continue
            if dtype != "float32" and len(rows) < 16:
                continue  # half precision is float32 behind the first line
            if dtype != "float32" and member.name in OF_THE_NORM:
                continue  # the slope at norm 0, 1 / (1e-7 tau), is beyond float16
            logits, labels = jnp.asarray(rows, dtype), jnp.asarray(truth)
            state = initial_state(objective, logits.shape[-1])

            # In one program where few rows have a shape of their own.
            run = terms_and_gradient if len(rows) == 16 else compiled_terms_and_gradient
            results = [run(objective, state, logits, labels)]
            if dtype == "float32" and case == "all at once":
                # Compiled as well: XLA divides once by a product where two divisions stand.
                results.append(compiled_terms_and_gradient(objective, state, logits, labels))
                # The sharp bins of soft-ECE amplify rounding by what the batch happens to be.
                usual, classes, _ = batch(seed=1)
                # At the largest a product and a difference that are fused are no rounding error.
                for scale in (1, 1e4, 1e12):
                    arguments = (objective, trained_state(objective), scale * usual, classes)
                    assert_close(
                        compiled_terms_and_gradient(*arguments), terms_and_gradient(*arguments)
                    )
            for terms, gradient in results:
                assert terms.dtype == jnp.float32, case
                assert gradient.dtype == logits.dtype, case
                assert np.isfinite(np.asarray(terms)).all(), (case, terms)
                assert np.isfinite(np.asarray(gradient)).all(), (case, gradient)


@every_member
def test_gradient_rows_sum_to_zero(member):
    if member.name in OF_THE_NORM:
        return
    objective = member.objective
    logits, labels, weights = batch()
    state = trained_state(objective)
    _, gradient = value_and_gradient(objective, state, logits, labels, weights)
    assert_close(np.asarray(gradient).sum(-1) / scale_of(gradient), np.zeros(16, np.float32))


@every_member
def test_classes_have_no_order(member):
    objective = member.objective
    logits, labels, weights = batch()
    # In its initial state no objective knows one class from another.
    state = initial_state(objective, 5)
    order = jnp.asarray([3, 0, 4, 1, 2])
    value, gradient = value_and_gradient(objective, state, logits, labels, weights)
    permuted = value_and_gradient(
        objective, state, logits[:, order], jnp.argsort(order)[labels], weights
    )
    assert_close(permuted, (value, gradient[:, order]))


@every_objective
def test_a_shift_of_all_logits_changes_nothing(member):
    """Check it to the accuracy that the shifted logits still have: against them, shifted back."""
    if member.name in OF_THE_NORM:
        return
    objective = member.objective
    for dtype, shifts in ((np.float32, (-1e2, 1e5)), (np.float64, (-1e9,))):
        with jax.enable_x64(dtype == np.float64):
            state = trained_state(objective, dtype=dtype)
            logits, labels, weights = (np.asarray(part) for part in batch(dtype=dtype))
            for shift in shifts:
                moved = logits + dtype(shift)
                back = moved - dtype(shift)  # exact: the sum has as few digits
                assert_close(
                    value_and_gradient(objective, state, jnp.asarray(moved), labels, weights),
                    value_and_gradient(objective, state, jnp.asarray(back), labels, weights),
                )


@every_member
def test_an_impossible_class_is_no_class(member):
    """Check that a class of logit -inf may as well be left out."""
    objective = member.objective
    logits, labels, weights = batch()
    wider = np.insert(logits, 2, -INF, axis=1)
    moved = np.where(np.asarray(labels) >= 2, labels + 1, labels)
    value, gradient = value_and_gradient(
        objective, initial_state(objective, 6), wider, moved, weights
    )
    assert np.all(np.isfinite(gradient))
    if member.name in WEIGH_EVERY_CLASS:
        assert value == INF
        return
    expected = value_and_gradient(objective, initial_state(objective, 5), logits, labels, weights)
    assert_close((value, np.delete(gradient, 2, axis=1)), expected)
    assert not np.asarray(gradient)[:, 2].any()


@every_member
def test_an_impossible_true_class_gives_the_limit(member):
    """Check value and gradient against a true class of probability 0 whose logit is finite."""
    objective = member.objective
    logits, labels, _ = batch()
    state = trained_state(objective)
    at = (jnp.arange(4), labels[:4])
    far, impossible = (logits.at[at].set(z) for z in (-1e30, -INF))
    expected, expected_gradient = terms_and_gradient(objective, state, far, labels)
    terms, gradient = terms_and_gradient(objective, state, impossible, labels)
    infinite = expected > 1e20
    if member.name in OF_THE_NORM:  # a far logit has a norm, an impossible class has none
        infinite = jnp.arange(16) < 4
    assert jnp.all(terms[infinite] == INF)
    assert_close(terms[~infinite], expected[~infinite])
    assert jnp.all(jnp.isfinite(gradient))
    # Where the weight depends on the other classes the limit is infinite, and it counts as fixed.
    finite = jnp.max(jnp.abs(expected_gradient), axis=-1) < 1e20
    finite &= ~infinite if member.name in OF_THE_NORM else True
    assert_close(gradient[finite], expected_gradient[finite])


@every_member
def test_transformations_agree(member):
    """Check vmap, grad of vmap, any number of leading axes, and the one-row batch."""
    objective = member.objective
    state = trained_state(objective)
    logits, labels, weights = batch()
    loss = functools.partial(total, objective, state)
    stacked = [part.reshape(2, 8, *part.shape[1:]) for part in (logits, labels, weights)]

    @jax.jit
    def run(logits, *rest):
        mapped = jax.vmap(jax.value_and_grad(loss))(logits, *rest)
        of_vmap = jax.grad(lambda z: jnp.sum(jax.vmap(loss)(z, *rest)))(logits)
        single = objective.value(state, logits[0, 3], *(part[0, 3] for part in rest))
        return mapped, of_vmap, objective.value(state, logits, *rest), single

    mapped, of_vmap, terms, single = run(*stacked)
    assert_close(of_vmap, mapped[1])
    if is_coupled(member):
        halves = [
            value_and_gradient(objective, state, *(part[half] for part in stacked))
            for half in (0, 1)
        ]
        assert_close(mapped, jax.tree.map(lambda *parts: jnp.stack(parts), *halves))
    else:
        whole = value_and_gradient(objective, state, logits, labels, weights)
        assert_close((jnp.sum(mapped[0]), mapped[1].reshape(16, 5)), whole)

    assert terms.shape == (2, 8)
    assert_close(terms.reshape(-1), objective.value(state, logits, labels, weights))
    assert single.shape == ()
    if not is_coupled(member):
        assert_close(single, terms[0, 3])


@every_objective
def test_one_trace_serves_all_numbers(member):
    """Check that options which are numbers can be traced: one compilation for a sweep."""
    numbers = {
        name: value
        for name, value in member.defaults.items()
        if isinstance(value, float) and not isinstance(value, bool)
    }
    logits, labels, weights = batch()

    @jax.jit
    @chex.assert_max_traces(1)
    def value(options, logits):
        objective = losses.objective(member.name, **options)
        return total(objective, initial_state(objective, 5), logits, labels, weights)

    chex.clear_trace_counter()
    for scale in (1.0, 1.1):
        options = {
            name: scale * number if name not in ("alpha",) else number / scale
            for name, number in numbers.items()
        }
        objective = losses.objective(member.name, **options)
        expected = total(objective, initial_state(objective, 5), scale * logits, labels, weights)
        assert_close(value(options, scale * logits), expected)


@every_member
def test_weight_zero_is_absence(member):
    """Check it for a label that is no class and logits that are no numbers, gradients too.

    That rows of weight 0 may be left out follows where weights are copies: of them there are none.
    """
    objective = member.objective
    state = trained_state(objective)
    logits, labels, _ = (np.array(part) for part in batch())
    weights = np.repeat(np.float32([1, 0]), [12, 4])
    rows = 16
    alone = (logits[:rows].copy(), labels[:rows].copy(), weights[:rows])
    expected, expected_gradient = value_and_gradient(objective, state, *alone)
    logits[12:], labels[12:] = np.nan, [255, -1, 255, -1]
    padded = (logits, labels, weights)
    value, gradient = value_and_gradient(objective, state, *padded)
    assert_close((value, gradient[:12]), (expected, expected_gradient[:12]), 1e-6)
    assert not np.asarray(gradient)[12:].any()
    terms = objective.value(state, *map(jnp.asarray, padded))
    assert not np.asarray(terms)[12:].any()
    assert_close(updated(objective, state, padded), updated(objective, state, alone))


@every_member
def test_weight_k_is_k_copies(member):
    objective = member.objective
    state = trained_state(objective)
    logits, labels, _ = batch()
    # As many copies as there are examples: eager primitives are compiled for a shape.
    copies = np.asarray([1, 3, 1, 2, 0, 1, 0, 1, 1, 0, 4, 1, 0, 0, 1, 0])
    index = np.repeat(np.arange(16), copies)
    of_weights, _ = value_and_gradient(objective, state, logits, labels, copies.astype(np.float32))
    of_copies, _ = value_and_gradient(objective, state, logits[index], labels[index])
    assert_close(of_copies, of_weights)

    weighted = (logits, labels, jnp.asarray(copies, jnp.float32))
    repeated = (logits[index], labels[index], None)
    assert_close(updated(objective, state, weighted), updated(objective, state, repeated))


@every_member
def test_devices_agree_with_one(member):
    """Check value, gradient, evidence and update on 8 devices against 1, in float64.

    First under vmap, where the devices' collectives work as well: so a loop over devices can be
    tested on one. Then on devices, if the objective asks the others for anything at all.
    """
    with jax.enable_x64(True):
        objective = member.objective
        state = trained_state(objective, dtype=np.float64)
        data = batch(dtype=np.float64)
        # Weights fall unevenly on the devices.
        sharded = [part.reshape(8, 2, *part.shape[1:]) for part in data]

        def on_device(logits, labels, weights):
            loss = lambda z: total(objective, state, z, labels, weights, axis_name="devices")  # noqa: E731
            value, gradient = jax.value_and_grad(loss)(logits)
            evidence = objective.evidence(state, logits, labels, weights).all_reduce("devices")
            return value, gradient, objective.update(state, evidence, PROGRESS)

        expected_value, expected_gradient = value_and_gradient(objective, state, *data)
        expected = updated(objective, state, data)
        asks = asks_other_devices(on_device, *(part[0] for part in sharded))
        assert asks or not is_coupled(member)
        for way in [jit_of_vmap, jax.pmap] if asks else [jit_of_vmap]:
            run = way(on_device, axis_name="devices")
            values, gradient, states = jax.block_until_ready(run(*sharded))
            assert_close(jnp.sum(values), expected_value, 1e-9)
            assert_close(gradient.reshape(16, 5), expected_gradient, 1e-9)
            for device in range(8):
                assert_close(jax.tree.map(lambda leaf: leaf[device], states), expected, 1e-9)  # noqa: B023


def test_what_varies_over_devices_passes_the_check_of_shard_map():
    """The default check reads types alone, so a trace suffices; images have an axis of pixels."""
    mesh, rows = jax.sharding.Mesh(jax.devices()[:8], "devices"), PartitionSpec("devices")
    logits, labels, weights = (part.reshape(8, 2, *part.shape[1:]) for part in batch())
    per_image = losses.objective("bootstrapped", per_image=True)
    for objective in [per_image, *(member.objective for member in DEFAULTS)]:
        state = initial_state(objective, 5)
        terms = functools.partial(objective.value, state, axis_name="devices")
        traced = jax.shard_map(terms, mesh=mesh, in_specs=rows, out_specs=rows)
        assert jax.eval_shape(traced, logits, labels, weights).shape == labels.shape


def jit_of_vmap(function, **options):
    return jax.jit(jax.vmap(function, **options))


def asks_other_devices(function, *args):
    """Tell whether the program names the axis of the devices: if not, each one works alone."""
    return "devices" in str(jax.make_jaxpr(function, axis_env=[("devices", 8)])(*args))


@every_member
def test_wrong_label_is_nan_and_never_wraps(member):
    objective = member.objective
    state = trained_state(objective)
    logits, labels, _ = batch()
    for wrong in (-1, 5, 255):
        bad = labels.at[2].set(wrong)
        terms = objective.value(state, logits, bad, None)
        gradient = jax.grad(lambda z: total(objective, state, z, bad, None))(logits)  # noqa: B023
        assert jnp.isnan(terms[2])
        assert np.isnan(np.asarray(gradient[2])).all()
        if not is_coupled(member):
            good = objective.value(state, logits, labels, None)
            others = np.delete(np.arange(len(labels)), 2)
            assert_close(terms[others], good[others])


@every_member
def test_nan_logits_are_nan(member):
    objective = member.objective
    logits, labels, _ = batch()
    for column in (0, 4):
        terms = objective.value(
            trained_state(objective), logits.at[2, column].set(jnp.nan), labels, None
        )
        assert jnp.isnan(terms[2])


@every_objective
def test_within_jit_a_weight_that_is_none_makes_the_evidence_and_the_next_state_nan(member):
    """Check the state as well: an update that skips a NaN would hide it from all later losses."""
    objective, state = member.objective, trained_state(member.objective)
    logits, labels, weights = batch()

    @jax.jit
    def evidence_and_state(logits, weights):
        evidence = objective.evidence(state, logits, labels, weights)
        return evidence, objective.update(state, evidence, PROGRESS)

    right, after = evidence_and_state(logits, weights)
    if not jax.tree.leaves(right):
        return  # the state is a matter of the clock alone
    assert not any(np.isnan(np.asarray(leaf)).any() for leaf in jax.tree.leaves((right, after)))
    wrong_inputs = [(logits, weights.at[2].set(wrong)) for wrong in (-1.0, jnp.nan, jnp.inf, 1e38)]
    for inputs in (*wrong_inputs, (logits.at[2, 1].set(jnp.nan), weights)):
        for tree in evidence_and_state(*inputs):
            assert any(np.isnan(np.asarray(leaf)).any() for leaf in jax.tree.leaves(tree))


TAKE_SOFT_LABELS = {
    *("margin_smoothing", "max_suppression", "mdca", "logit_norm", "class_adaptive_margin"),
    *("cross_entropy", "label_smoothing", "brier", "focal", "fl_gra", "flsc531", "flsc532"),
    *("bsce", "bsce_gra", "logit_adjusted", "soft_iou"),
}


def test_soft_labels_are_taken_or_refused_in_one_sentence():
    logits, labels, weights = batch()
    hot = jax.nn.one_hot(labels, 5)
    absent, present = int(jnp.argmin(weights)), int(jnp.argmax(weights))
    far = hot.at[absent].set(7.0).at[present].set(0.4)  # the sum is 2
    for member in DEFAULTS:
        objective = member.objective
        value = functools.partial(objective.value, trained_state(objective), logits)
        if member.name in TAKE_SOFT_LABELS:
            expected = value(labels, weights)
            assert_close(value(hot, weights), expected)
            assert jnp.isnan(value(far, weights)[present]), member
            others = weights.at[present].set(0)
            assert_close(value(far, others), value(labels, others))
            continue
        with pytest.raises(ValueError, match=r"objective: logits .* need labels of shape \(16,\)"):
            value(hot, weights)
        if objective.clock != "never":
            with pytest.raises(ValueError, match=r"objective: logits .* need labels of shape"):
                objective.evidence(trained_state(objective), logits, hot, weights)


@every_objective
def test_state_has_no_gradient(member):
    objective = member.objective
    state = trained_state(objective)
    gradient = jax.grad(lambda state: total(objective, state, *batch()))(state)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


SMOOTH = (
    *("cross_entropy", "label_smoothing", "brier", "entropy_regularized"),
    *("focal", "fl_gra", "inverse_focal", "bsce", "bsce_gra"),
)


# Of these, top labels and runners-up tie where two logits are equal.
SMOOTH_BESIDE_TIES = ("mmce_gra",)


@pytest.mark.parametrize("name", [name for name in losses.__all__ if name.endswith("_penalty")])
def test_a_wrong_label_makes_a_penalty_nan(name):
    penalty = getattr(losses, name)
    # The rows are the pixels of an image for penalties of images.
    axes = (1, 3, 1) if name.removesuffix("_penalty") in OF_IMAGES else (3,)
    logits = np.float32([[2, 0, 0], [0, 1, 0], [0, 0, 3]]).reshape(*axes, 3)
    present, absent = np.ones(axes, np.float32), np.float32([1, 0, 1]).reshape(axes)
    for wrong in (-1, 99):
        labels = np.array([0, wrong, 0]).reshape(axes)
        assert np.isnan(np.sum(penalty(logits, labels, present)))
        assert np.isfinite(np.sum(penalty(logits, labels, absent)))
    if np.ndim(penalty(logits, labels, absent)) == 0:  # one value for the whole batch
        labels, copies = np.array([0, 0, 1]), np.array([0, 0, 2])
        weighted = penalty(logits, labels, np.float32([2, 0, 1]))
        assert_close(weighted, penalty(logits[copies], labels[copies], present))
        assert penalty(logits, labels, 0 * present) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH + SMOOTH_BESIDE_TIES)
def test_second_derivatives(name):
    """Check reverse over reverse: the gradient is itself differentiated correctly."""
    with jax.enable_x64(True):
        objective = losses.objective(name)
        logits, labels, _ = batch(num_examples=4, num_classes=3, dtype=np.float64)
        # Margin 0 for two classes is where a careless rule has a wrong second derivative, and a
        # margin of 400 where it is NaN.
        points = [(logits, labels), (jnp.zeros((3, 2)).at[2, 0].set(400.0), jnp.asarray([0, 1, 0]))]
        for z, y in points if name in SMOOTH else points[:1]:
            gradient = jax.grad(lambda z: total(objective, (), z, y, None))  # noqa: B023
            direction = jnp.asarray(np.random.default_rng(3).standard_normal(z.shape))
            slope = lambda z: jnp.vdot(gradient(z), direction)  # noqa: B023, E731
            step = 1e-6
            shifts = step * jnp.eye(z.size).reshape(z.size, *z.shape)
            along = jax.jit(jax.grad(slope))(z)
            slopes = jax.jit(jax.vmap(slope))
            differences = slopes(z[None] + shifts) - slopes(z[None] - shifts)
            np.testing.assert_allclose(
                along.reshape(-1), differences / (2 * step), rtol=1e-5, atol=1e-7
            )


def test_defaults_are_the_recorded_ones():
    assert_recorded("losses")


def test_a_batch_of_weight_zero_is_worth_nothing():
    logits, labels, _ = batch()
    for member in DEFAULTS:
        objective = member.objective
        state = initial_state(objective, 5)
        evidence = objective.evidence(state, logits, labels, jnp.zeros(16))
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(evidence))
        terms = objective.value(state, logits, labels, jnp.zeros(16))
        assert not np.asarray(terms).any(), member


test_docstring = docstrings_of("losses")
