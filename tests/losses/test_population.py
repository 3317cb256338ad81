"""Population minimisers against direct minimisation, closed forms and hand calculations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from calib_jax import losses
from calib_jax.core import population

WEIGHTED = ("focal", "inverse_focal", "bsce", "dual_focal")
CASES = [
    *[(name, {}) for name in ("label_smoothing", "max_suppression", "entropy_regularized")],
    *[(name, {"gamma": gamma}) for name in WEIGHTED for gamma in (0.5, 2.0)],
    ("bsce", {"gamma": 1.5, "beta": 1.0}),
    ("bsce", {"gamma": 3.0, "reading": "sum"}),
    ("margin_smoothing", {"margin": 1.0, "alpha": 0.3}),
    ("label_smoothing", {"alpha": 0.3, "spread": "all"}),
]
STATIONARY = [
    *[(name, {}) for name in ("fl_gra", "bsce_gra", "dfl_gra", "flsd53_gra", "bsce_adaptive_gra")],
    ("inverse_focal", {"weighting": "gradient"}),
    ("focal", {"gamma": 5.0}),
]
STAGES = {"thresholds": (0.2, 0.5), "gammas": (5.0, 3.0, 3.0)}
DEFAULTS = [
    (("focal", "fl_gra"), {"gamma": 3.0}),
    (("dual_focal", "dfl_gra"), {"gamma": 5.0}),
    (("flsd53", "flsd53_gra", "bsce_adaptive_gra"), STAGES),
    (("flsd532",), STAGES | {"gammas": (5.0, 3.0, 2.0)}),
    (("bsce", "bsce_gra"), {"gamma": 2.0, "beta": 2.0}),
    (("inverse_focal",), {"gamma": 1.0}),
    (("margin_smoothing",), {"margin": 10.0, "alpha": 0.1}),
]


def draws(count=2, classes=4):
    return np.random.default_rng(3).dirichlet(np.ones(classes), count)


def expected(name, options, classes):
    """Return a function of logits and p: the expected loss and its gradient, in float64."""
    objective = losses.objective(name, **options)

    def value(z, p):
        logits = jnp.broadcast_to(z, (classes, classes))
        return jnp.sum(p * objective.value((), logits, jnp.arange(classes)))

    return jax.jit(jax.value_and_grad(value))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_equals_direct_minimisation(name, options):
    with jax.enable_x64(True):
        value_and_slope = expected(name, options, 4)
        for p in draws():
            q = losses.population_minimizer(name, p, **options)
            start = np.log(0.9 * p + 0.025)
            found = scipy.optimize.minimize(
                lambda z, p: jax.device_get(value_and_slope(z, p)),
                start,
                args=(p,),
                jac=True,
                options={"gtol": 1e-8},
            )
            # Near a kink the search stops early, so the value may only be lower than its value.
            assert float(value_and_slope(jnp.log(q), p)[0]) <= found.fun + 1e-9
            if name not in ("max_suppression", "margin_smoothing"):
                np.testing.assert_allclose(q, jax.nn.softmax(found.x), atol=1e-5)


@pytest.mark.parametrize(("name", "options"), STATIONARY)
def test_expected_gradient_is_zero(name, options):
    with jax.enable_x64(True):
        value_and_slope = expected(name, options, 4)
        for p in draws():
            q = losses.population_minimizer(name, p, **options)
            np.testing.assert_allclose(value_and_slope(jnp.log(q), p)[1], 0, atol=1e-8)


@pytest.mark.parametrize(("names", "options"), DEFAULTS)
def test_the_defaults_are_those_of_the_papers(names, options):
    p = np.concatenate([draws(60), [[1e-9, 1e-6, 1e-3, 1 - 0.001001001]]])
    for name in names:
        expected = losses.population_minimizer(name, p, **options)
        np.testing.assert_array_equal(losses.population_minimizer(name, p), expected)


def focal_odds(q, gamma=3.0):
    """Compute p from q by the closed form of Charoenphakdee et al."""
    h = q / ((1 - q) ** gamma - gamma * (1 - q) ** (gamma - 1) * q * np.log(q))
    return h / h.sum()


@pytest.mark.parametrize(
    ("classes", "p", "tau"), [(2, 0.956, 0.276), (10, 0.968, 0.543), (77, 0.963, 0.682)]
)
def test_focal_inverts_the_closed_form(classes, p, tau):
    q = np.array([0.7] + [0.3 / (classes - 1)] * (classes - 1))
    true = focal_odds(q)
    np.testing.assert_allclose(true[0], p, atol=5e-4)
    np.testing.assert_allclose(losses.population_minimizer("focal", true, gamma=3.0), q, rtol=1e-8)
    np.testing.assert_allclose(np.log(q[0] / q[1]) / np.log(true[0] / true[1]), tau, atol=6e-4)
    for gamma in (0.1, 1.0, 20.0):  # sharp rows, and rows with two leading classes
        z = 6 * np.random.default_rng(classes).normal(size=(300, classes))
        z[:150, 1] = z[:150].max(axis=1) - 0.1
        sharp = population.softmax(z)
        rows = np.stack([focal_odds(q, gamma) for q in sharp])
        found = losses.population_minimizer("focal", rows, gamma=gamma)
        np.testing.assert_allclose(found, sharp, atol=1e-7)


def test_proper_losses_return_p_and_shapes_are_kept():
    p = draws(6).reshape(2, 3, 4)
    for name in ("cross_entropy", "brier", "mmce", "mdca", "dca", "esd"):
        np.testing.assert_allclose(losses.population_minimizer(name, p), p)
    np.testing.assert_allclose(losses.population_minimizer("mmce", p, scale=4.0), p)


@pytest.mark.parametrize(
    ("name", "p", "message"),
    [
        ("adafocal", [0.5, 0.5], "follows the calibration"),
        ("logit_norm", [0.5, 0.5], "norm of the logits"),
        ("mmce_weighted", [0.9, 0.1], "half of the predictions"),
        ("flsc532", [0.5, 0.5], "with the last gamma"),
        ("focl", [0.5, 0.5], "did you mean 'focal'"),
        ("focal", [0.5, 0.6], "sum 1"),
        ("focal", [1.5, -0.5], "class probabilities"),
    ],
)
def test_bad_input(name, p, message):
    with pytest.raises(ValueError, match=message):
        losses.population_minimizer(name, p)


def overfitted(factor, rows=2000, classes=10):
    random = np.random.default_rng(1)
    z = 2 * random.normal(size=(rows, classes))
    return factor * z, (z + random.gumbel(size=z.shape)).argmax(axis=1)


@pytest.mark.parametrize(("factor", "loss"), [(1.5, "focal"), (0.85, "inverse_focal")])
def test_matched_focal_has_a_predicted_temperature_of_1(factor, loss):
    z, labels = overfitted(factor)
    found = losses.matched_focal(z, labels)
    assert found.loss == loss
    np.testing.assert_allclose(found.temperature, 1, atol=5e-3)
    np.testing.assert_allclose(found.cross_entropy, factor, rtol=0.05)
    again = population.predicted_logits(z, found.cross_entropy, found.loss, gamma=found.gamma)
    np.testing.assert_allclose(population.temperature(again, labels), found.temperature, rtol=1e-6)


@pytest.mark.parametrize(
    ("factor", "loss", "largest"), [(30.0, "focal", 20.0), (0.1, "inverse_focal", 2.0)]
)
def test_where_the_largest_gamma_does_not_suffice_the_temperature_says_so(factor, loss, largest):
    z, labels = overfitted(factor, rows=300)
    found = losses.matched_focal(z, labels)
    assert (found.loss, found.gamma) == (loss, largest)
    assert found.temperature > 1.05 if loss == "focal" else found.temperature < 0.95


def test_an_unknown_option_is_named_with_its_loss_and_the_nearest():
    with pytest.raises(TypeError, match=r"'fl_gra' has no option 'gama' .*mean 'gamma'\?"):
        losses.population_minimizer("fl_gra", np.array([0.5, 0.5]), gama=2.0)
    for name, option in (("mdca", "focal_gamma"), ("brier", "gamma")):  # p is not their minimiser
        with pytest.raises(TypeError, match=rf"minimiser of {name}' has no option '{option}'"):
            losses.population_minimizer(name, [0.3, 0.7], **{option: 3.0})
    with pytest.raises(TypeError, match=r"float|scalar"):  # not the first of them for all rows
        losses.population_minimizer("focal", [[0.8, 0.2], [0.5, 0.5]], gamma=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 2\], got 2.1"):
        losses.population_minimizer("inverse_focal", [0.5, 0.5], gamma=2.1)


def test_held_out_rows_are_flat_and_their_softmax_does_not_overflow():
    logits = np.array([[[800.0, 0.0, 0.0]], [[1.0, 2.0, 1.0]]])
    z, labels = population.rows_of(logits, np.array([[1], [2]]))
    np.testing.assert_array_equal(z, logits[:, 0])
    assert labels.tolist() == [1, 2]
    np.testing.assert_array_equal(population.softmax(z)[0], [1, 0, 0])
    with pytest.raises(ValueError, match=r"got the shapes \(3,\) and \(\)"):
        population.rows_of(np.zeros(3), 0)


@pytest.mark.parametrize("name", ["entropy_regularized", "focal", "label_smoothing"])
def test_rows_are_minimised_each_by_itself(name):
    p = draws(5)
    alone = [losses.population_minimizer(name, row) for row in p]
    np.testing.assert_allclose(losses.population_minimizer(name, p), alone, rtol=1e-6)
