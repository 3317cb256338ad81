"""Bad input gets one sentence that names the value and the way out, at trace time."""

import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import losses
from calib_jax.losses import AdaFocalState, RecallState

LOGITS = jnp.zeros((4, 3))
LABELS = jnp.zeros(4, int)
SOFT = jnp.full((4, 3), 1 / 3)


def objective(name, **options):
    return lambda: losses.objective(name, **options)


BAD = {
    "labels too short": (
        lambda: losses.focal(LOGITS, LABELS[:3]),
        ValueError,
        r"focal: logits \(4, 3\) need labels of shape \(4,\), got \(3,\)",
    ),
    "swapped": (
        lambda: losses.focal(LABELS, LOGITS),
        TypeError,
        "logits must be floating point, got int32.*swapped",
    ),
    "integer logits": (
        lambda: losses.cross_entropy(np.zeros((4, 3), int), LABELS),
        TypeError,
        "got int32",
    ),
    "labels that are no integers": (
        lambda: losses.dual_focal(LOGITS, LABELS * 1.0),
        TypeError,
        "labels .* must be integers, got float32",
    ),
    "soft labels where none are taken": (
        lambda: losses.flsd(LOGITS, SOFT),
        ValueError,
        r"need labels of shape \(4,\), got \(4, 3\)",
    ),
    "soft labels of another shape": (
        lambda: losses.focal(LOGITS, SOFT[:, :2]),
        ValueError,
        r"soft labels must have the shape of the logits \(4, 3\), got \(4, 2\)",
    ),
    "a scalar": (lambda: losses.focal(jnp.array(1.0), jnp.array(0)), ValueError, "classes"),
    **{
        f"one class of {name}": (
            lambda loss=loss: loss(LOGITS[:, :1], np.zeros_like(LABELS)),
            ValueError,
            r"logits \(4, 1\) have one class.*calib_jax.binary\(logits\[..., 0\]\)",
        )
        for name, loss in (
            ("a loss", losses.cross_entropy),
            ("a penalty", losses.mdca_penalty),
            ("an objective", functools.partial(losses.objective("focal").value, ())),
        )
    },
    "the values of a loss": (
        lambda: losses.as_objective(losses.focal(LOGITS, LABELS)),
        TypeError,
        r"loss must be a function of \(logits, labels\), got float32\[4\]",
    ),
    "the value of a penalty": (
        lambda: losses.regularized(losses.focal, losses.mmce_penalty(LOGITS, LABELS), 1.0),
        TypeError,
        r"penalty must be a function of .*, got float32\[\]",
    ),
    "no classes": (lambda: losses.focal(LOGITS[:, :0], LABELS), ValueError, "at least one class"),
    "weights of another shape": (
        lambda: losses.objective("focal").value((), LOGITS, LABELS, jnp.ones(3)),
        ValueError,
        r"weights must have shape \(4,\), one for each example, got \(3,\)",
    ),
    "weights of a penalty": (
        lambda: losses.mmce_penalty(LOGITS, LABELS, np.ones(5)),
        ValueError,
        r"weights must have shape \(4,\)",
    ),
    **{
        f"{words} of {name}": (
            lambda name=name, args=args: getattr(losses, name)(*args),
            ValueError,
            f"{name}.*{message}",
        )
        for name in ("mdca_penalty", "dca_penalty", "esd_penalty")
        for words, args, message in (
            (
                "one row",
                (LOGITS[:1], LABELS[:1]),
                "at least . examples, got 1: give a larger batch",
            ),
            ("no weight", (LOGITS, LABELS, np.zeros(4)), "all 4 weights are 0"),
        )
    },
    "pixels without images": (
        lambda: losses.neighbour_margin_penalty(LOGITS, LABELS),
        ValueError,
        r"labels of shape \[images, height, width\].*got \(4,\)",
    ),
    "images without neighbours": (
        lambda: losses.objective("neighbour_margin").value(
            (), LOGITS[:, None, None], LABELS[:, None, None], None
        ),
        ValueError,
        r"more than one pixel, got the shape \(1, 1\)",
    ),
    "an even window": (
        lambda: losses.neighbour_margin_penalty(
            LOGITS.reshape(1, 2, 2, 3), LABELS.reshape(1, 2, 2), kernel_size=2
        ),
        ValueError,
        "kernel_size must be odd, got 2",
    ),
    "tau of logit_norm": (
        lambda: losses.logit_norm(LOGITS, LABELS, tau=0.0),
        ValueError,
        "tau must be greater than 0, got 0.0",
    ),
    "class_reduction": (
        lambda: losses.margin_smoothing(LOGITS, LABELS, class_reduction="avg"),
        ValueError,
        "class_reduction must be one of 'mean', 'sum', got 'avg'",
    ),
    "margin": (
        lambda: losses.margin_smoothing(LOGITS, LABELS, margin=-1.0),
        ValueError,
        "margin must be at least 0, got -1.0",
    ),
    "penalty of class_adaptive_margin": (
        objective("class_adaptive_margin", penalty="phi"),
        ValueError,
        "penalty must be one of 'phr', 'p2', 'p3', got 'phi'",
    ),
    "calibrated logits of another shape": (
        lambda: losses.consistency(LOGITS, LABELS, LOGITS[:, :2]),
        ValueError,
        r"calibrated_logits must have the shape .* got \(4, 2\)",
    ),
    "state of another number of classes": (
        lambda: losses.recall(LOGITS, LABELS, RecallState(jnp.ones(5))),
        ValueError,
        "the state has 5 classes and the logits 3",
    ),
    **{
        f"state of {name} for another number of classes": (
            lambda name=name, options=options: losses.objective(name, **options).value(
                losses.objective(name, **options).init(5), LOGITS, LABELS, None
            ),
            ValueError,
            r"the state has 5 classes and the logits 3: make it with init\(3\)",
        )
        for name, options in {
            "recall": {"normalized": True},
            "recall_precision": {},
            "ece_weighted": {},
            "class_adaptive_margin": {},
        }.items()
    },
    "too few edges": (
        lambda: losses.adafocal(LOGITS, LABELS, AdaFocalState(jnp.ones(3), jnp.ones(3))),
        ValueError,
        "a state of 3 gammas needs 4 edges, got 3",
    ),
    "an objective's labels": (
        lambda: losses.objective("focal").value((), LOGITS, LABELS[:3], jnp.ones(4)),
        ValueError,
        r"logits \(4, 3\) need labels of shape \(4,\), got \(3,\)",
    ),
    "an objective's evidence": (
        lambda: losses.objective("adafocal").evidence(
            losses.objective("adafocal").init(3), LOGITS, LABELS[:3], jnp.ones(4)
        ),
        ValueError,
        r"logits \(4, 3\) need labels of shape \(4,\), got \(3,\)",
    ),
    "an objective's scalar": (
        lambda: losses.objective("brier").value((), jnp.array(1.0), jnp.array(0), None),
        ValueError,
        "at least one class",
    ),
    "bins of a tempered loss": (
        objective("tempered_focal", num_bins=0),
        ValueError,
        "num_bins must be at least 1, got 0",
    ),
    "gamma below 0": (
        lambda: losses.focal(LOGITS, LABELS, gamma=-1.0),
        ValueError,
        "gamma must be at least 0, got -1.0",
    ),
    "gamma not a number": (
        lambda: losses.dual_focal(LOGITS, LABELS, gamma=np.nan),
        ValueError,
        "gamma must be at least 0, got nan",
    ),
    "one gamma of several": (
        lambda: losses.flsd(LOGITS, LABELS, gammas=(5.0, -3.0, 3.0)),
        ValueError,
        "gammas must be at least 0, got -3.0",
    ),
    "beta below 1": (
        lambda: losses.generalized_brier(LOGITS, LABELS, beta=0.5),
        ValueError,
        "beta must be at least 1 to be a norm, got 0.5",
    ),
    "thresholds that do not ascend": (
        lambda: losses.flsd(LOGITS, LABELS, thresholds=(0.5, 0.2)),
        ValueError,
        r"thresholds must ascend, got \(0.5, 0.2\)",
    ),
    "gammas and thresholds": (
        lambda: losses.flsd(LOGITS, LABELS, gammas=(5.0, 3.0)),
        ValueError,
        "one more entry than thresholds, got 2 gammas for 2 thresholds",
    ),
    "milestones that do not ascend": (
        objective("flsc531", milestones=(250, 100)),
        ValueError,
        r"milestones must ascend, got \(250, 100\)",
    ),
    "milestones and gammas": (
        objective("flsc531", milestones=(100,)),
        ValueError,
        "one more entry than milestones, got 3 gammas for 1 milestones",
    ),
    "weighting": (
        lambda: losses.focal(LOGITS, LABELS, weighting="gradiant"),
        ValueError,
        "weighting must be one of 'loss', 'gradient', got 'gradiant'; did you mean 'gradient'",
    ),
    "weighting, with soft labels": (
        lambda: losses.focal(LOGITS, SOFT, weighting="none"),
        ValueError,
        "weighting must be one of .* got 'none'",
    ),
    "runner-up": (
        lambda: losses.dual_focal(LOGITS, LABELS, runner_up="secnd"),
        ValueError,
        "got 'secnd'; did you mean 'second'",
    ),
    "reading": (
        lambda: losses.generalized_brier(LOGITS, LABELS, reading="mean"),
        ValueError,
        "reading must be one of 'norm', 'sum', got 'mean'",
    ),
    "alpha of label smoothing": (
        lambda: losses.label_smoothing(LOGITS, LABELS, alpha=1.5),
        ValueError,
        r"alpha must lie in \[0, 1\], got 1.5",
    ),
    "spread": (
        lambda: losses.label_smoothing(LOGITS, LABELS, spread="every"),
        ValueError,
        "spread must be one of 'others', 'all', got 'every'",
    ),
    "alpha of recall": (objective("recall", alpha=-0.1), ValueError, "alpha must lie in"),
    "counters": (objective("recall", counters="paper"), ValueError, "counters must be one of"),
    "bandwidth": (
        lambda: losses.mmce_penalty(LOGITS, LABELS, bandwidth=0.0),
        ValueError,
        "bandwidth must be greater than 0, got 0.0",
    ),
    "bins": (objective("adafocal", num_bins=0), ValueError, "num_bins must be at least 1, got 0"),
    "bounds": (
        objective("adafocal", gamma_max=-3.0),
        ValueError,
        r"gamma_max must be at least -2.0 \(gamma_min\), got -3.0",
    ),
    "rule": (objective("adafocal", rule="slide"), ValueError, "did you mean 'slides'"),
    "binning": (objective("adafocal", binning="equal"), ValueError, "got 'equal'"),
    "form": (
        lambda: losses.exponential_weight(jnp.ones(3), form="pur"),
        ValueError,
        "got 'pur'; did you mean 'pure'",
    ),
    "criterion": (
        objective("tempered_focal", criterion="brier"),
        ValueError,
        "criterion must be one of 'ece', 'nll', got 'brier'",
    ),
    "temperature": (
        objective("consistency", temperature=0.0),
        ValueError,
        "temperature must be greater than 0, got 0.0",
    ),
    "unknown objective": (
        objective("flsd35"),
        ValueError,
        "no objective is called 'flsd35'; did you mean 'flsd53'",
    ),
    "objective like no other": (
        objective("zzz"),
        ValueError,
        r"no objective is called 'zzz'; the closest of \d+ are '",
    ),
    "objective in upper case": (objective("Focal"), ValueError, "did you mean 'focal'"),
    "objective with a hyphen": (
        objective("label-smoothing"),
        ValueError,
        r"'label-smoothing'; did you mean 'label_smoothing'\?$",
    ),
    "option by position": (
        lambda: losses.focal(LOGITS, LABELS, 3.0),
        TypeError,
        r"^focal takes 2 positional arguments \(logits, labels\), got 3: options are keywords, such"
        r" as gamma=\.$",
    ),
    "objective taken for a function": (
        lambda: losses.bsce_gra(LOGITS, LABELS),
        AttributeError,
        r"^calib_jax.losses has no function 'bsce_gra': it is an objective,"
        r" losses.objective\('bsce_gra'\)\.$",
    ),
    "unknown option": (
        objective("focal", gama=2.0),
        TypeError,
        r"'focal' has no option 'gama' \(it has gamma, weighting\); did you mean 'gamma'",
    ),
    "option of a loss that has none": (
        objective("cross_entropy", gamma=2.0),
        TypeError,
        r"'cross_entropy' has no option 'gamma' \(it has none\)",
    ),
    "unknown function": (lambda: losses.focl, AttributeError, "'focl'; did you mean 'focal'"),
    "p0 of gamma_for": (lambda: losses.gamma_for(0.0), ValueError, r"p0 must lie in \(0, 1\]"),
    "traced gamma_for": (
        lambda: jax.jit(losses.gamma_for)(0.3),
        TypeError,
        "gamma_for works on the host",
    ),
    "p of the gradient ratio": (
        lambda: losses.focal_gradient_ratio(1.5, 2.0),
        ValueError,
        r"p must lie in \[0, 1\], got 1.5",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_one_sentence(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    call, error, message = BAD[name]
    with pytest.raises(error, match=message) as caught:
        call()
    assert str(caught.value).endswith((".", "?"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["gamma", "beta"])
def test_traced_numbers_are_not_checked_but_static_ones_are_under_jit(option):
    loss = lambda value: losses.generalized_brier(LOGITS, LABELS, **{option: value})  # noqa: E731
    np.testing.assert_allclose(jax.jit(loss)(2.0), loss(2.0), rtol=1e-6)
    with pytest.raises(ValueError, match=f"{option} must be at least"):
        jax.jit(lambda: loss(-1.0))()


def test_lists_and_numpy_are_taken():
    state = AdaFocalState(jnp.ones(2), jnp.linspace(0.0, 1.0, 3))
    expected = losses.adafocal(LOGITS, LABELS, state)
    given = losses.adafocal(np.zeros((4, 3), np.float32).tolist(), [0, 0, 0, 0], state)
    np.testing.assert_array_equal(given, expected)
