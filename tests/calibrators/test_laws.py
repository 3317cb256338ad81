"""The laws of every calibrator; the catalogue finds a new one."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from calib_jax import calibrators
from tests.calibrators import MEMBERS, applied, calibrated, costly, floats, mean_nll, problem
from tests.options import assert_recorded
from tests.test_doctests import docstrings_of

# They change confidences alone, or contain doing nothing and start from it.
NEVER_WORSE = {
    *("temperature", "bias_corrected_temperature", "ensemble_temperature"),
    *("vector", "matrix", "dirichlet"),
}
# The number of parameters for 3 classes; what counts bins or knots has no such number.
SIZE = {
    "temperature": 1,
    "bias_corrected_temperature": 4,
    "ensemble_temperature": 3,
    "platt": 6,
    "beta": 9,
    "vector": 6,
    "matrix": 12,
    "dirichlet": 12,
    "svs": 7,
    "sms": 13,
}
PENALIZED = {"svs", "sms"}  # an optimum always exists for a temperature
MIXES_CLASSES = {"matrix", "dirichlet", "sms"}
# Base rates are fitted to this tolerance where all confidences are equal.
BASE_RATES = dict.fromkeys(MEMBERS, 2e-3) | {"svs": 0.05, "sms": 0.05, "bbq": 0.02}
# These have no base rate for every class.
for _name in ("temperature", "ensemble_temperature", "venn_abers"):
    del BASE_RATES[_name]
NEW = problem(seed=1)[0]


@costly
def test_weights_are_copies_and_weight_0_is_absence(name):
    logits, labels = problem(40)
    copies = np.bincount(np.random.default_rng(0).integers(0, 40, 80), minlength=40)
    assert {0, 1, 2, 3} <= set(copies)
    ones = np.ones(80, np.float32)
    of_copies = calibrated(name, np.repeat(logits, copies, 0), np.repeat(labels, copies), ones, NEW)
    order = np.random.default_rng(1).permutation(80)
    weights = np.concatenate([copies, np.zeros(40)]).astype(np.float32)
    absent = weights == 0
    logits, labels = np.tile(logits, (2, 1)), np.tile(labels, 2)
    logits[absent], labels[absent] = np.nan, 255
    of_weights = calibrated(name, logits[order], labels[order], weights[order], NEW)
    np.testing.assert_allclose(of_weights[1], of_copies[1], rtol=2e-3, atol=2e-4)
    assert of_weights[0].state.name == of_copies[0].state.name
    for one in ("nll_before", "nll_after"):
        same = [getattr(fit[0].state, one) for fit in (of_weights, of_copies)]
        np.testing.assert_allclose(*same, rtol=1e-4)


@pytest.mark.parametrize("name", ["histogram", "isotonic", "venn_abers", "bbq"])
def test_counts_do_not_stop_at_the_last_integer_of_float32(name, monkeypatch):
    """One example of a weight above 2^24 is right, and all others, alike, are wrong."""
    # BBQ averages more models, the larger the weight is.
    monkeypatch.setattr(sys.modules["calib_jax.calibrators.bbq"], "_MOST", 10)
    weights = np.ones(2**13 + 1, np.float32)
    weights[0] = 4096 * 2**13
    labels = np.arange(len(weights)) == 0
    logits = np.tile(np.float32([[0, 2]]), (len(weights), 1))
    params = calibrators.named(name).fit(logits, labels.astype(int), weights)
    p = np.exp(calibrators.named(name).apply(params, logits[:1]))[0, 0]
    np.testing.assert_allclose(p, 1 / 4097, rtol=0.02)


@costly
def test_the_state_tells_the_nll_before_and_after(name):
    logits, labels = problem()
    params = calibrators.named(name).fit(logits, labels)
    assert params.state.converged
    assert params.state.name == "converged"
    answer = applied(name)(params, logits)
    assert answer.dtype == jnp.float32
    np.testing.assert_allclose(params.state.nll_before, mean_nll(logits, labels), rtol=1e-5)
    np.testing.assert_allclose(params.state.nll_after, mean_nll(answer, labels), rtol=1e-4)
    assert params.state.nll_after < params.state.nll_before  # 2.5 times too confident


@costly
def test_leading_axes_are_rows(name):
    logits, labels = problem()
    params, expected = calibrated(name, logits, labels)
    folded = calibrators.named(name).fit(logits.reshape(8, 10, 3), labels.reshape(8, 10))
    jax.tree.map(np.testing.assert_array_equal, params, folded)
    answer = calibrators.named(name).apply(params, logits.reshape(8, 10, 3))
    assert answer.shape == (8, 10, 3)
    np.testing.assert_allclose(softmax(answer, axis=-1).reshape(80, 3), expected, rtol=1e-5)
    one = calibrators.named(name).apply(params, logits[7])
    np.testing.assert_allclose(softmax(one), expected[7], rtol=1e-5, atol=1e-7)


DEGENERATE = {
    "separated": lambda logits, labels: (logits, logits.argmax(-1)),
    "one class": lambda logits, labels: (logits, 0 * labels),
    "one class missing": lambda logits, labels: (logits, np.minimum(labels, 1)),
    "always wrong": lambda logits, labels: (logits, logits.argmin(-1)),
    "equal confidences": lambda logits, labels: (np.full_like(logits, 3.0), labels),
}


@costly
@pytest.mark.parametrize("case", DEGENERATE)
def test_a_degenerate_fit_ends_in_a_named_state(name, case):
    logits, labels = DEGENERATE[case](*problem())
    params, p = calibrated(name, logits, labels)
    assert params.state.name in {"converged", "indistinct", "no_optimum", "stopped"}
    assert all(np.isfinite(values).all() for values in floats(params))
    assert np.isfinite(applied(name)(params, jnp.asarray(logits))).all()
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-5)
    if name in NEVER_WORSE:
        assert params.state.nll_after <= params.state.nll_before * (1 + 1e-6)
    boundless = name in SIZE and name not in PENALIZED
    if (boundless and case == "one class") or (name in NEVER_WORSE and case == "separated"):
        assert params.state.name == "no_optimum"
    if case == "equal confidences":
        assert params.state.name != "stopped"
        if name in BASE_RATES:
            np.testing.assert_allclose(p[0], np.bincount(labels) / 80, atol=BASE_RATES[name])


@costly
def test_many_models_at_once_are_a_loop_and_inside_jit_bad_ones_are_nan(name):
    logits, labels = problem()
    ones = np.ones(80)
    odd_logits = np.where(np.arange(80)[:, None] < 2, np.float32(np.nan), logits)
    odd_labels = np.where(np.arange(80) == 5, 255, labels)
    without = np.where((np.arange(80) < 2) | (np.arange(80) == 5), 0, 1)
    good = [(*problem(seed=1), ones), (*problem(seed=2), ones), (odd_logits, odd_labels, without)]
    bad = [(odd_logits, labels, ones), (logits, odd_labels, ones), (logits, labels, 0 * ones)]
    for wrong in (-1, np.nan, np.inf, 1e38):
        bad.append((logits, labels, np.where(np.arange(80) == 7, wrong, 1)))
    models = [jnp.stack([jnp.asarray(model[part]) for model in good + bad]) for part in range(3)]
    calibrator = calibrators.named(name)
    params = jax.jit(jax.vmap(calibrator.fit))(*models)
    # The logits are constants of the program: XLA computes with them while it compiles.
    answers = np.asarray(jax.jit(jax.vmap(lambda params: calibrator.apply(params, NEW)))(params))
    assert list(params.state.name) == ["converged"] * 3 + ["unusable"] * 7
    assert list(params.state.converged) == [True] * 3 + [False] * 7
    for index, model in enumerate(good):
        _, alone = calibrated(name, *model, NEW)
        np.testing.assert_allclose(softmax(answers[index], axis=1), alone, rtol=5e-3, atol=2e-4)
    for values in floats(params):
        assert np.isfinite(values[:3]).all()
        assert np.isnan(values[3:]).all()
    assert np.isnan(answers[3:]).all()


@costly
def test_apply_refuses_what_does_not_fit(name):
    params, _ = calibrated(name, *problem())
    apply = calibrators.named(name).apply
    with pytest.raises(TypeError, match=f"{name}: logits must be floating point, got int32"):
        apply(params, np.zeros((2, 3), np.int32))
    if name not in ("temperature", "ensemble_temperature"):
        with pytest.raises(ValueError, match="was fitted on 3 classes and the logits"):
            apply(params, np.zeros((2, 4), np.float32))


@functools.cache
def fitted(name):
    return calibrators.named(name).fit(*problem())


def _with_impossible():
    """Put -inf where it is not the true class, but once; one row has one possible class."""
    logits, labels = problem()
    impossible = np.random.default_rng(5).random(logits.shape) < 0.25
    impossible[np.arange(80), labels] = False
    impossible[7] = [True, True, False]
    labels[7] = 2
    return np.where(impossible, -np.inf, logits).astype(np.float32), labels


@costly
def test_an_impossible_class_stays_so_or_is_refused(name):
    logits, labels = _with_impossible()
    impossible = logits == -np.inf
    member = calibrators.named(name)
    if name in MIXES_CLASSES:
        said = rf"{name}: {impossible.any(1).sum()} of 80 rows have a logit of -inf"
        with pytest.raises(ValueError, match=said):
            member.fit(np.tile(logits, (2, 1)), np.tile(labels, 2), np.repeat([1.0, 0.0], 80))
        p = softmax(applied(name)(fitted(name), logits), axis=1)
        np.testing.assert_array_equal(np.isnan(p), impossible.any(1)[:, None].repeat(3, 1))
        weights = np.where(impossible.any(1), 0, 1).astype(np.float32)
        params, p = calibrated(name, logits, labels, weights, NEW)
        assert params.state.converged
        return
    params, p = calibrated(name, logits, labels)
    assert params.state.name == "converged"
    assert all(np.isfinite(values).all() for values in floats(params))
    np.testing.assert_array_equal(p == 0, impossible)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(p[7], [0, 0, 1])
    np.testing.assert_allclose(softmax(member.apply(params, logits), axis=1), p, rtol=1e-5)
    np.testing.assert_allclose(
        params.state.nll_after,
        mean_nll(np.log(np.maximum(p, 1e-300, dtype=np.float64)), labels),
        rtol=1e-4,
    )
    assert params.state.nll_after < params.state.nll_before
    # A true class that is impossible has an infinite NLL, and no say in the parameters.
    moved = labels.copy()
    moved[3], logits[3] = 0, [-np.inf, 1, 1]
    of_moved = member.fit(logits, moved)
    assert (float(of_moved.state.nll_before), float(of_moved.state.nll_after)) == (np.inf, np.inf)
    assert all(np.isfinite(values).all() for values in floats(of_moved._replace(state=None)))
    # A class that is possible in no row leaves the others as they are.
    never = np.where(np.arange(3) == 2, -np.inf, problem()[0]).astype(np.float32)
    params, p = calibrated(name, never, labels % 2)
    assert params.state.name == "converged"
    assert (p[:, 2] == 0).all()
    assert np.isfinite(p).all()
    assert params.state.nll_after < params.state.nll_before


@costly
@pytest.mark.parametrize("shift", [-1e5, 1e2])
def test_a_shift_of_all_logits_changes_nothing(name, shift):
    """Compare shifted logits with the same ones, rounded alike, that are not shifted."""
    logits, labels = problem()
    far = logits + np.float32(shift)
    near = far - np.float32(shift)
    rounding = np.finfo(np.float32).eps * abs(shift)
    of_far, of_near = (calibrated(name, z, labels) for z in (far, near))
    # These calibrators act on the logits, not on their differences, so each logit is rounded.
    loose = {"temperature": 4, "vector": 40, "matrix": 40}.get(name, 0) * rounding
    if name in {"vector", "matrix"}:
        loose += 1e-3  # the fit goes another way
    np.testing.assert_allclose(of_far[1], of_near[1], rtol=1e-5 + loose, atol=1e-6 + loose)
    assert of_far[0].state.name == of_near[0].state.name == "converged"
    if name not in {"vector", "matrix"}:
        for one, other in zip(floats(of_far[0]), floats(of_near[0]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4 + loose)


def test_the_catalogue_finds_by_name():
    assert set(SIZE) & set(MEMBERS) >= {"temperature"}
    for name in MEMBERS:
        calibrator = calibrators.catalogue()[name]
        assert getattr(calibrators, name) is calibrator is calibrators.named(name)
    with pytest.raises(ValueError, match="no calibrator is called 'temprature'; did you mean 'te"):
        calibrators.named("temprature")
    with pytest.raises(AttributeError, match="did you mean 'temperature'"):
        calibrators.temperatur  # noqa: B018


def test_defaults_are_the_recorded_ones():
    assert_recorded("calibrators")


test_docstring = docstrings_of("calibrators")
