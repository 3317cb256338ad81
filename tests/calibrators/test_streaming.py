"""Fits of a stream: the optimum of one piece, whatever the blocks, and what a stream may not be."""

import itertools
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators
from calib_jax.calibrators import temperature, vector
from calib_jax.calibrators.parts import streaming
from tests.calibrators.members import mean_nll, problem
from tests.calibrators.test_temperature import best_temperature
from tests.selection import some

STREAMED = [name for name, one in calibrators.catalogue().items() if hasattr(one, "fit_stream")]
every_member = pytest.mark.parametrize("name", some(STREAMED, {"temperature"}))


@pytest.fixture(autouse=True)
def pieces_of_100_rows_of_3_classes(monkeypatch):
    monkeypatch.setattr(streaming, "_ENTRIES", 300)


def weighted_problem(dtype=np.float32, seed=1):
    logits, labels = problem(1000, 3, seed=seed, dtype=dtype)
    weights = np.random.default_rng(seed).choice([0, 0.5, 1, 2], 1000).astype(dtype)
    return logits + np.array([0.5, 0, -0.5], dtype), labels, weights


def in_blocks(*arrays, cuts=(0, 7, 7, 300, 301, 900, 1000)):
    """Cut rows into blocks of unequal size, one of which is empty."""
    return [tuple(a[i:j] for a in arrays) for i, j in itertools.pairwise(cuts)]


def numbers(params):
    return np.concatenate([np.ravel(leaf) for leaf in params[:-1]])


@every_member
@pytest.mark.parametrize("dtype", [pytest.param(np.float32, marks=pytest.mark.slow), np.float64])
def test_blocks_have_the_optimum_of_the_whole(name, dtype, x64):
    data = weighted_problem(dtype)
    calibrator = calibrators.named(name)
    params, whole = calibrator.fit_stream(in_blocks(*data)), calibrator.fit(*data)
    assert params.state.name == whole.state.name == "converged"
    assert numbers(params).dtype == dtype
    if name == "temperature":
        expected = best_temperature(data[0].astype(np.float64), *data[1:])
        np.testing.assert_allclose(params.temperature, expected, rtol=1e-5)
    if name == "temperature" or dtype == np.float64:  # L-BFGS in float32 stops before 1e-5
        np.testing.assert_allclose(numbers(params), numbers(whole), rtol=1e-5, atol=1e-6)
    logits, labels, weights = data
    after = mean_nll(calibrator.apply(params, logits), labels, weights)
    np.testing.assert_allclose(params.state.nll_before, mean_nll(*data), rtol=1e-6)
    np.testing.assert_allclose(params.state.nll_after, after, rtol=1e-6)
    assert after <= mean_nll(calibrator.apply(whole, logits), labels, weights) * (1 + 1e-6)


@every_member
def test_other_blocks_of_the_same_rows_change_nothing(name):
    """Also leading axes, half precision where it is exact, and rows of weight 0."""
    fit = calibrators.named(name).fit_stream
    logits, labels, weights = weighted_problem()
    logits = logits.astype(np.float16)
    expected = numbers(fit(in_blocks(logits, labels, weights)))
    logits[weights == 0], labels[weights == 0] = np.nan, 255
    images = [part.reshape(4, 250, *part.shape[1:]) for part in (logits, labels, weights)]
    given = [tuple(jnp.asarray(part[i]) for part in images) for i in range(4)]
    np.testing.assert_array_equal(numbers(fit(lambda: iter(given))), expected)


@every_member
def test_no_pass_keeps_the_blocks(name):
    """Weights are optional, and the passes are few."""
    logits, labels, _ = weighted_problem()
    references, most, passes = [], 0, 0

    def blocks():
        nonlocal most, passes
        passes += 1
        for i in range(0, 1000, 50):
            block = logits[i : i + 50].copy()
            references.append(weakref.ref(block))
            most = max(most, sum(reference() is not None for reference in references))
            yield block, labels[i : i + 50]
            del block

    params = calibrators.named(name).fit_stream(blocks)
    assert params.state.name == "converged"
    assert most <= 8
    assert passes <= 24


@every_member
def test_fits_without_an_optimum_end_as_in_one_piece(name):
    logits, labels, _ = weighted_problem()
    calibrator = calibrators.named(name)
    for z, y in (
        (logits, logits.argmax(-1)),
        (0 * logits, labels),
        (np.float32(3e38) * np.sign(logits), labels),
    ):
        params, whole = calibrator.fit_stream(in_blocks(z, y)), calibrator.fit(z, y)
        assert params.state.name == whole.state.name != "converged"
    assert np.isnan(numbers(params)).all()


@every_member
def test_an_impossible_true_class_is_ignored(name):
    logits, labels, weights = weighted_problem()
    logits[3, labels[3]] = -np.inf
    logits[5, (labels[5] + 1) % 3] = -np.inf
    weights[3] = 1
    fit = calibrators.named(name).fit_stream
    params = fit(in_blocks(logits, labels, weights))
    assert params.state.nll_before == params.state.nll_after == np.inf
    weights[3] = 0
    np.testing.assert_allclose(
        numbers(params), numbers(fit(in_blocks(logits, labels, weights))), rtol=1e-5
    )


@pytest.mark.slow
def test_penalties_of_a_stream_are_those_of_one_piece(x64):
    data = weighted_problem(np.float64)
    penalties = {"slope_penalty": 0.1, "intercept_penalty": 0.01}
    params = vector.fit_stream(in_blocks(*data), **penalties)
    assert params.state.name == "converged"
    np.testing.assert_allclose(numbers(params), numbers(vector.fit(*data, **penalties)), rtol=1e-5)


def test_a_class_that_never_occurs_takes_few_passes():
    logits, labels, weights = weighted_problem()
    passes = []
    data = in_blocks(logits, np.minimum(labels, 1), weights)
    params = vector.fit_stream(lambda: passes.append(1) or data)
    assert params.state.name == "no_optimum"
    assert len(passes) < 40


def test_too_few_iterations_stop():
    data = in_blocks(*weighted_problem())
    assert temperature.fit_stream(data, max_iterations=1).state.name in ("stopped", "converged")
    with pytest.raises(ValueError, match="max_iterations must be at least 1, got 0"):
        temperature.fit_stream(data, max_iterations=0)


LOGITS, LABELS, WEIGHTS = weighted_problem()
ONCE = iter([(LOGITS, LABELS)])
BAD = {
    "can be read once": iter([(LOGITS, LABELS)]),
    "the first pass read 1000 rows and a later one 0": lambda: ONCE,
    "the stream has no examples": [],
    "all 1000 weights are 0": [(LOGITS, LABELS, 0 * WEIGHTS)],
    "block 1 has 2 classes and the first block 3": [(LOGITS, LABELS), (LOGITS[:, :2], LABELS)],
    "rows 100 to 199: 1 of 100 labels are not among the 3 classes, 255 is one": [
        (LOGITS[:90], LABELS[:90]),
        (LOGITS, np.where(np.arange(1000) == 50, 255, LABELS)),
    ],
    "rows 0 to 99: 1 of 100 rows have NaN": [
        (np.where(np.arange(1000)[:, None] == 5, np.float32(np.nan), LOGITS), LABELS)
    ],
    "block 0: a block is a tuple": [LOGITS],
    "blocks must be a list of blocks or a function": 3,
    "block 0: one class leaves nothing": [(LOGITS[:, :1], LABELS)],
    r"block 0: logits \(1000, 3\) need labels of shape \(1000,\)": [(LOGITS, LABELS[1:])],
}


@pytest.mark.parametrize("message", BAD)
def test_unusable_streams_are_errors(message):
    with pytest.raises((TypeError, ValueError), match=message):
        temperature.fit_stream(BAD[message])
