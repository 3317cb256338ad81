"""Calibrators of an event: pairs (confidence, correct) and (score, correct) in place of logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from calib_jax import calibrators, metrics
from tests.calibrators import ONES, applied
from tests.calibrators.test_binned import refitted
from tests.selection import some

STATED = ["bbq", "beta", "histogram", "isotonic", "platt", "venn_abers"]
SCORED = ["histogram", "isotonic", "platt", "venn_abers"]
of_stated = pytest.mark.parametrize("name", STATED)


def answers(seed=0):
    """State 80 confidences, from .05 to .95 and with ties, which are too sure."""
    random = np.random.default_rng(seed)
    confidence = np.float32(np.round(random.uniform(0.05, 0.94, 80), 2) + 0.003)
    return confidence, random.random(80) < confidence**2


def log_likelihoods(seed=0):
    """Return the same answers with scores from about -2,000 to 0, most of them near 0."""
    confidence, correct = answers(seed)
    return -np.float32(1e-3) * np.exp(15 * (1 - confidence)), correct


@functools.cache
def fitted(name, kind):
    """Fit a calibrator once for all tests; return the parameters and the calibrated answers."""
    given = (
        metrics.Stated(*answers()) if kind == "stated" else calibrators.Scored(*log_likelihoods())
    )
    params = calibrators.named(name).fit(given)
    return params, calibrators.named(name).apply(params, given)


@of_stated
def test_an_event_is_class_1_of_two_classes(name):
    confidence, correct = answers()
    params, calibrated = fitted(name, "stated")
    logits = np.stack([np.log1p(-confidence), np.log(confidence)], axis=-1)
    member = calibrators.named(name)
    of_two = member.fit(logits, correct.astype(int), ONES)
    wanted = np.exp(member.apply(of_two, logits))[:, 1]
    np.testing.assert_allclose(calibrated.confidence, wanted, rtol=2e-4, atol=2e-6)
    np.testing.assert_array_equal(calibrated.correct, correct)
    assert params.state.name == of_two.state.name == "converged"
    if name in ("platt", "beta"):  # they have the slopes of the log-odds
        np.testing.assert_allclose(params.fitted[0], of_two[0], rtol=1e-3)
        least = np.asarray(member.apply(params, np.float32([0, 1e-6, 1.05e-6])))
        assert least[0] == least[1] < least[2]
    np.testing.assert_allclose(params.state.nll_before, metrics.nll(metrics.Stated(*answers())))
    np.testing.assert_allclose(params.state.nll_after, metrics.nll(calibrated), rtol=1e-5)
    assert metrics.ece(calibrated) < metrics.ece(metrics.Stated(*answers()))
    folded = member.apply(params, confidence.reshape(8, 10))
    np.testing.assert_array_equal(folded, calibrated.confidence.reshape(8, 10))


@pytest.mark.parametrize("kind", ["stated", "scored"])
def test_venn_abers_is_two_regressions_for_each_answer(kind):
    values, correct = answers() if kind == "stated" else log_likelihoods()
    params, calibrated = fitted("venn_abers", kind)
    beyond = values.min() - np.float32(0.01), values.max() + np.float32(0.01)
    asked = np.concatenate([values[:20], values[20:30] * np.float32(0.99), beyond])
    p0, p1 = np.transpose([refitted(values, correct, np.ones(80), one) for one in asked])
    bounds = calibrators.venn_abers.bounds(params, asked)
    np.testing.assert_allclose(bounds, (p0, p1), atol=1e-5)
    merged = p1[:20] / (1 - p0[:20] + p1[:20])
    np.testing.assert_allclose(calibrated.confidence[:20], merged, rtol=1e-5)


def test_stated_tenths_have_a_bin_each():
    """Language models state .6, .7, .8: edges of ten bins, which hold their upper edge."""
    tenths = np.repeat(np.arange(11) / 10, 40)
    correct = np.random.default_rng(0).random(440) < tenths**2
    correct[:3] = correct[-3:] = [True, False, True]
    params = calibrators.histogram.fit(metrics.Stated(tenths, correct), num_bins=10)
    actual = calibrators.histogram.apply(params, np.arange(1, 11) / 10, floor=0.0)
    frequency = correct.reshape(11, 40).mean(axis=1)
    lowest = (frequency[0] + frequency[1]) / 2  # 0 and .1 share the first bin
    np.testing.assert_allclose(actual, [lowest, *frequency[2:]], rtol=1e-5)


def test_bins_of_scores_hold_equally_many_answers():
    score, correct = log_likelihoods()
    score += np.arange(80, dtype=np.float32) * 1e-5  # no two are equal
    params = calibrators.histogram.fit(calibrators.Scored(score, correct), num_bins=8)
    order = np.argsort(score)
    wanted = np.repeat(correct[order].reshape(8, 10).mean(axis=1), 10)
    actual = calibrators.histogram.apply(params, score[order], floor=0.0)
    np.testing.assert_allclose(actual, wanted, atol=1e-6)
    edge = (score[order][9] + score[order][10]) / 2  # halfway between two scores
    near = np.float32([edge - 1e-3 * abs(edge), edge + 1e-3 * abs(edge)])
    np.testing.assert_allclose(calibrators.histogram.apply(params, near), wanted[9:11], atol=1e-5)


@pytest.mark.parametrize("name", some(STATED, ("beta", "histogram")))
def test_weights_are_copies_and_compiled_fits_are_the_same(name):
    kind = "scored" if name in SCORED else "stated"
    pair = log_likelihoods(1) if kind == "scored" else answers(1)
    given = (calibrators.Scored if kind == "scored" else metrics.Stated)(*pair)
    weights = np.random.default_rng(0).permutation(np.arange(80) % 3)
    weights[np.argmin(weights)] = 1  # so there are 80 copies, as of all other fits
    member = calibrators.named(name)
    copies = np.repeat(np.arange(80), weights)
    whole = type(given)(*(part[copies] for part in pair))
    of_copies = member.fit(whole)
    wanted = member.apply(of_copies, pair[0])

    def refitted_and_applied(given, weights):
        params = member.fit(given, weights=weights)
        return jnp.stack(params.state[1:]), member.apply(params, pair[0])

    both = [np.stack([part, part[::-1]]) for part in (*pair, weights)]
    results = jax.jit(jax.vmap(refitted_and_applied))(type(given)(*both[:2]), both[2])
    for state, actual in zip(*results, strict=True):
        np.testing.assert_allclose(state, of_copies.state[1:], rtol=1e-4)
        np.testing.assert_allclose(actual, wanted, rtol=2e-3, atol=1e-5)


@of_stated
def test_certain_answers_have_finite_losses(name):
    confidence, correct = answers()
    confidence[:8] = [0, 0, 0, 0, 1, 1, 1, 1]
    correct[:8] = [False, False, False, True] * 2
    stated = metrics.Stated(confidence, correct)
    params = calibrators.named(name).fit(stated)
    assert params.state.name == "converged"
    assert params.state.nll_before == np.inf
    assert params.state.nll_after < np.log(2) + 0.1
    calibrated = calibrators.named(name).apply(params, stated)
    assert metrics.nll(calibrated) < np.inf
    assert ((calibrated.confidence > 0) & (calibrated.confidence < 1)).all()


def test_invalid_answers():
    confidence, correct = answers()
    stated, scored = metrics.Stated(confidence, correct), calibrators.Scored(confidence, correct)
    isotonic = calibrators.isotonic
    params, _ = fitted("isotonic", "stated")
    for error, message, call in [
        (TypeError, "beta: it does not calibrate a Scored: use histogram",
         lambda: calibrators.beta.fit(scored)),
        (TypeError, "temperature: it does not calibrate a Stated: use bbq, beta",
         lambda: calibrators.temperature.fit(stated, correct)),
        (TypeError, "leave out labels", lambda: isotonic.fit(stated, correct)),
        (TypeError, "logits need labels", lambda: isotonic.fit(np.zeros((3, 2), np.float32))),
        (ValueError, "divide percent by 100",
         lambda: isotonic.fit(metrics.Stated(100 * confidence, correct))),
        (ValueError, "scores must be finite",
         lambda: isotonic.fit(calibrators.Scored(np.append(confidence[1:], -np.inf), correct))),
        (ValueError, "labels are not among the 2 classes, 2 is one",
         lambda: isotonic.fit(calibrators.Scored(confidence, 2 * correct))),
        (ValueError, "bins='width' needs probabilities; for scores use bins='mass'",
         lambda: calibrators.histogram.fit(scored, bins="width")),
        (TypeError, "fitted to a Stated, not a Scored",
         lambda: isotonic.apply(params, scored)),
        (TypeError, "these are IsotonicParams",
         lambda: calibrators.platt.apply(params, confidence)),
        (TypeError, "these are IsotonicParams", lambda: calibrators.save("x.npz", "platt", params)),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            call()


def test_invalid_values_are_nan_inside_jit():
    for kind, odd in (("stated", 1.5), ("scored", np.nan), ("stated", np.nan)):
        for name in ("isotonic", "platt", "venn_abers"):
            params, _ = fitted(name, kind)
            actual = applied(name)(params, np.float32([odd, 0.5]))
            np.testing.assert_array_equal(np.isnan(actual), [True, False])
    confidence, correct = answers()
    confidence[0] = 1.5
    params = jax.jit(calibrators.platt.fit)(metrics.Stated(confidence, correct))
    assert params.state.name == "unusable"


@pytest.mark.parametrize(
    ("name", "kind"), [(n, "stated") for n in STATED] + [(n, "scored") for n in SCORED]
)
def test_it_comes_back_from_a_file(name, kind, tmp_path):
    params, _ = fitted(name, kind)
    calibrators.save(tmp_path / "event.npz", name, params)
    loaded_name, loaded = calibrators.load(tmp_path / "event.npz")
    assert loaded_name == name
    assert type(loaded) is type(params)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_answers_sharded_over_devices():
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Explicit,))
    sharding = NamedSharding(mesh, PartitionSpec("rows"))
    for kind, pair in (("stated", answers()), ("scored", log_likelihoods())):
        params, calibrated = fitted("isotonic", kind)
        arrays = (jax.device_put(part, sharding) for part in pair)
        given = (metrics.Stated if kind == "stated" else calibrators.Scored)(*arrays)
        on_mesh = calibrators.isotonic.fit(given)
        jax.tree.map(np.testing.assert_array_equal, on_mesh, params)
        actual = calibrators.isotonic.apply(on_mesh, given)
        assert actual.confidence.sharding.is_equivalent_to(sharding, 1)
        np.testing.assert_array_equal(actual.confidence, calibrated.confidence)


@pytest.mark.parametrize("name", ["platt", "isotonic"])
@pytest.mark.parametrize("rising", [True, False])
def test_a_score_that_is_not_finite_gives_nan(name, rising):
    scores = np.linspace(-2, 2, 80, dtype=np.float32)
    correct = (np.arange(80) % 3 == 0) ^ ((scores > 0) == rising)
    params = calibrators.named(name).fit(calibrators.Scored(scores, correct))
    found = calibrators.named(name).apply(params, np.float32([-np.inf, np.inf, np.nan, 0]))
    np.testing.assert_array_equal(np.isnan(found), [True, True, True, False])
    assert calibrators.named(name).apply(params, np.float32(0)) == found[3]


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("answer", [True, False])
def test_answers_that_are_all_right_or_all_wrong_have_no_slope(name, answer):
    stated = metrics.Stated(np.linspace(0.1, 0.9, 80, dtype=np.float32), np.full(80, answer))
    params = calibrators.named(name).fit(stated)
    by_nll = name in ("platt", "beta")
    assert params.state.name == ("no_optimum" if by_nll else "converged")
    calibrated = calibrators.named(name).apply(params, stated).confidence
    assert (np.abs(np.asarray(calibrated)[10:70] - answer) < 0.2).all()
