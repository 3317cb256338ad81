"""The recorded values and gradients of the papers' released code, against the library's losses.

One test per recorded case, in the precision it was recorded in. One case of each family of losses
runs by default; those with other hyperparameters, shapes and extreme logits are `slow`. `LOSSES`
says for each group of cases which public function it is; hyperparameters are read from the case.
What the recordings are and where they come from: tests/golden/README.md.
"""

import collections
import functools
import json
import pathlib
import re
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from .references import probabilities

FOLDER = pathlib.Path(__file__).parents[1] / "golden"

TOLERANCE = {"float64": {"rtol": 1e-6, "atol": 1e-9}, "float32": {"rtol": 2e-4, "atol": 1e-5}}

# Cases that the library does not reproduce, and why. They do not run.
_IGNORED_COUNT_AS_ERRORS = (
    "the released precision term counts ignored pixels as mispredicted; here weight 0 is absent"
)
EXCLUDED = {
    "recall_prec_ce_fn|seg_ign|f64": _IGNORED_COUNT_AS_ERRORS,
    "recall_prec_ce_fn|seg_ign_missing01|f64": _IGNORED_COUNT_AS_ERRORS,
}

# On this input the recorded weight of class 0 (not the loss) is odd. The class is absent, and the
# released code gives it the counts of the first present class. No pixel has that weight.
CLASS_0_ABSENT = "seg_ign_missing01"


class Case(types.SimpleNamespace):
    """One recorded call, with the fields of the manifest for it and for its group."""

    input = None

    @property
    def family(self):
        """The name without its hyperparameters: bsce_gra_g2.0_n2 is of the family bsce_gra."""
        return re.sub(r"(_[a-zA-Z]*[\d.]+)+$", "", self.name)

    def __getitem__(self, hyperparameter):
        return self.hyperparameters[hyperparameter]

    def array(self, name):
        """Return a recorded array, None if there is none of that name."""
        shared = self.input is not None and name in ("logits", "labels")
        key = f"{self.input if shared else self.id}/{name}"
        return recordings().get(key)


@functools.cache
def recordings():
    """Open the arrays; each is read when it is asked for."""
    files = ("losses.npz", "segmentation.npz", "later_losses.npz")
    return collections.ChainMap(*(np.load(FOLDER / name) for name in files))


@functools.cache
def cases():
    """List every recorded case."""
    groups = json.loads((FOLDER / "manifest.json").read_text())["groups"]
    return [Case(**(group | case)) for group in groups for case in group["cases"]]


# Ordinary logits, and pixels with absent ones and absent classes. The other inputs repeat a loss in
# other shapes, or are confident, certain or equal, as in the laws.
FIRST_INPUTS = {"normal_N8_K10", "seg_ign_missing01"}


def one_of_each_family(chosen):
    """Parametrise a test over cases, named by their ids: the first of a family by default."""
    in_order = sorted(chosen, key=lambda c: (c.input not in FIRST_INPUTS, c.dtype != "float64"))
    first = {case.family: case.id for case in reversed(in_order)}
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, marks=[] if case.id in first.values() else pytest.mark.slow)
            for case in chosen
        ],
        ids=[case.id for case in chosen],
    )


def each(*kinds):
    """Parametrise a test over the cases of some kinds."""
    return one_of_each_family(
        [case for case in cases() if case.kind in kinds and case.id not in EXCLUDED]
    )


def arguments(case, dtype, prefix=""):
    """Return logits, labels and weights; classes last, weight 0 on ignored pixels."""
    logits, labels = case.array(f"{prefix}logits"), case.array(f"{prefix}labels")
    if logits.ndim == 4:
        logits = np.moveaxis(logits, 1, -1)
    weights = labels != 255
    return (
        jnp.asarray(logits, dtype),
        jnp.asarray(labels, jnp.int32),
        jnp.asarray(weights, jnp.float32),
    )


def assert_close(actual, recorded, dtype, what):
    """Compare at the dtype's tolerance where the recording is finite; ours always is."""
    actual, recorded = np.asarray(actual, np.float64), np.asarray(recorded, np.float64)
    assert actual.shape == recorded.shape, what
    assert np.isfinite(actual).all(), f"{what} is not finite"
    finite = np.isfinite(recorded)
    np.testing.assert_allclose(
        actual[finite], recorded[finite], **TOLERANCE[dtype], err_msg=what, strict=True
    )


# --------------------------------------------------------------------------------------------
# Which function a case is. Each entry: (logits, labels, weights, case) -> the reduced scalar.


def reduce(values, case):
    """Sum or average over the batch, as the case says."""
    return jnp.mean(values) if "mean" in case.reduction else jnp.sum(values)


def call(function, options=None, **fixed):
    """Call a loss or a penalty with hyperparameters of the case (ours: theirs), reduced."""

    def loss(logits, labels, weights, case):
        chosen = {ours: case[theirs] for ours, theirs in (options or {}).items()}
        return reduce(function(logits, labels, **chosen, **fixed), case)

    return loss


def train(name, options=None, **fixed):
    """Call an objective in its initial state, reduced."""

    def value(logits, labels, **chosen):
        objective = losses.objective(name, **chosen)
        return objective.value(objective.init(logits.shape[-1]), logits, labels)

    return call(value, options, **fixed)


def flsd_gammas(case):
    """The recorded table lacks its last gamma, which is the hyperparameter of that name."""
    return {"thresholds": tuple(case["thresholds"]), "gammas": (*case["gammas"], case["gamma"])}


def flsd(function, **fixed):
    """Call a loss with FLSD's stages and, where the case has one, a norm."""

    def loss(logits, labels, weights, case):
        norm = {"beta": case["norm"]} if "norm" in case.hyperparameters else {}
        return reduce(function(logits, labels, **flsd_gammas(case), **norm, **fixed), case)

    return loss


def adafocal_fixed(logits, labels, weights, case):
    """Gammas and edges are given."""
    state = losses.AdaFocalState(
        gamma=jnp.asarray(case.array("gammas"), logits.dtype),
        edges=jnp.asarray(case.array("edges"), logits.dtype),
    )
    return reduce(losses.adafocal(logits, labels, state), case)


def recall(name, **options):
    """Move the state by this batch's evidence, then average over the pixels that count."""

    def loss(logits, labels, weights, case):
        alpha = 0.5 if "ema" in case.name else 1.0
        objective = losses.objective(name, counters="released", alpha=alpha, **options)
        state = recall_state(objective, logits, labels, weights, case)
        return jnp.sum(objective.value(state, logits, labels, weights)) / jnp.sum(weights)

    return loss


def recall_state(objective, logits, labels, weights, case):
    """Return the state that this batch's evidence gives."""
    state = objective.init(logits.shape[-1])
    previous = case.array("previous_weight")
    if previous is not None:
        state = state._replace(miss_rate=jnp.asarray(previous, logits.dtype))
    evidence = objective.evidence(state, logits, labels, weights)
    return objective.update(state, evidence, losses.Progress(steps=0, epochs=0, num_epochs=1))


def balanced(logits, labels, weights, case):
    """The class weights are given; the mean is weighted by them."""
    num_classes = logits.shape[-1]
    assert case["weight"] == "linspace(0.5,2,C)"
    state = losses.ClassWeightsState(jnp.linspace(0.5, 2, num_classes, dtype=logits.dtype))
    objective = losses.objective("class_weighted", normalized=True)
    return mean(objective.value(state, logits, labels, weights), weights)


def mean(terms, weights):
    """Average over the pixels that are not ignored."""
    return jnp.sum(terms * weights) / jnp.maximum(jnp.sum(weights), 1)


def bootstrapped(logits, labels, weights, case):
    """The released value is the mean of the terms over the pixels that are not ignored."""
    objective = losses.objective("bootstrapped", count=case["K"], per_image=True)
    return mean(objective.value((), logits, labels, weights), weights)


def ohem_of_rows(logits, labels, weights, case):
    """The released code keeps the k largest of every row of an image, ignored pixels being 0."""
    kept = int(case["thresh"] * len(labels))

    def of_row(logits, labels, weights):
        present = jnp.sum(weights).astype(logits.dtype)
        objective = losses.objective("ohem", fraction=kept / jnp.maximum(present, kept))
        return mean(objective.value((), logits, labels, weights), weights)

    return jnp.mean(jax.vmap(jax.vmap(of_row))(logits, labels, weights))


def soft_iou(logits, labels, weights, case):
    """The released value is 1 smaller, and the probability at ignored pixels is in the union."""
    none_at_ignored = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return losses.soft_iou_penalty(logits, none_at_ignored, per_image=True) - 1


def lovasz(logits, labels, weights, case):
    """Per image, over the classes that occur."""
    assert case["only_present"]
    return losses.lovasz_penalty(logits, labels, weights, per_image=True)


GAMMA = {"gamma": "gamma"}
LOSSES: dict[str, Callable[..., jax.Array]] = {
    "ce_sum": call(losses.cross_entropy),
    "focal": call(losses.focal, GAMMA),
    "focal_mean": call(losses.focal, GAMMA),
    "focal_frac": call(losses.focal, GAMMA),
    "focal_gra": train("fl_gra", GAMMA),
    "flsd": flsd(losses.flsd),
    "flsd_nlp_mean": flsd(losses.flsd),
    "flsd_gra": flsd(losses.flsd, weighting="gradient"),
    "brier_mean": call(losses.brier),
    "brier_sum": call(losses.brier),
    "mmce_raw": call(losses.mmce_penalty, {"bandwidth": "kernel_denominator"}),
    "mmcew_raw": call(
        losses.mmce_weighted_penalty, {"bandwidth": "kernel_denominator"}, double_normalization=True
    ),
    "ce_mmce": train("mmce", {"scale": "lamda"}),
    "ce_mmcew": train("mmce_weighted", {"scale": "lamda"}, double_normalization=True),
    "bsce_ce_mmcew": train("mmce_weighted", {"scale": "lamda"}, double_normalization=True),
    "mmce_gra": train("mmce_gra"),
    "ls_sum": call(losses.label_smoothing, {"alpha": "smoothing"}),
    "ls_mean": call(losses.label_smoothing, {"alpha": "smoothing"}),
    "entropy_reg": call(losses.entropy_penalty, GAMMA),
    "ce_entropy_reg": train("entropy_regularized", {**GAMMA, "scale": "lamda"}),
    "focal_entropy_reg": train(
        "focal_entropy_regularized", {**GAMMA, "focal_gamma": "gamma", "scale": "lamda"}
    ),
    "dual": call(losses.dual_focal, GAMMA),
    "dual_gra": call(losses.dual_focal, GAMMA, detach_runner_up=True),
    "bsce": train("bsce", {**GAMMA, "beta": "norm"}),
    "bsce_gra": call(losses.generalized_brier, {**GAMMA, "beta": "norm"}),
    "bsce_gra_mean": train("bsce_gra", {**GAMMA, "beta": "norm"}),
    "bsce_adaptive_gra": flsd(losses.adaptive_generalized_brier),
    "dece": call(
        losses.soft_ece_penalty,
        {"num_bins": "num_bins", "rank_sharpness": "t_a", "bin_temperature": "t_b"},
    ),
    "adafocal_fixed": adafocal_fixed,
    "recall_ce": recall("recall", normalized=False),
    "recall_ce_fn": recall("recall", normalized=True),
    "recall_ce_fn_ema": recall("recall", normalized=True),
    "recall_prec_ce_fn": recall("recall_precision", floor=1e-9),
    "seg_focal_pix": call(losses.focal, GAMMA),
    "balanced_ce": balanced,
    "ohem": ohem_of_rows,
    "soft_iou": soft_iou,
    "lovasz": lovasz,
    "margin": call(losses.margin_smoothing, {"margin": "margin", "alpha": "alpha"}),
    "nll_mdca": train("mdca", {"scale": "beta", "focal_gamma": "gamma"}),
    "fl_mdca": train("mdca", {"scale": "beta", "focal_gamma": "gamma"}),
    "nll_dca": train("dca", {"scale": "beta"}),
    "esd": call(losses.esd_penalty),
    "nacl": train(
        "neighbour_margin", {"alpha": "alpha", "kernel_size": "kernel_size", "distance": "distance"}
    ),
    "bootstrapped_ce": bootstrapped,
}


def value_and_gradient(case):
    """Compute a case's loss and its gradient: eagerly where the losses share primitives.

    Other cases have shapes of their own, for each of which all primitives would be compiled.
    """
    function = jax.value_and_grad(functools.partial(LOSSES[case.family], case=case))
    if case.kind == "segmentation_loss" or case.input is None:
        function = jax.jit(function)
    return function(*arguments(case, case.dtype))


@each("loss", "segmentation_loss")
def test_loss(case):
    with jax.enable_x64(case.dtype == "float64"):
        value, gradient = value_and_gradient(case)
        assert value.dtype == gradient.dtype == case.dtype
        assert_close(value, case.array("loss"), case.dtype, "value")
        assert np.isfinite(gradient).all(), "gradient is not finite"
        recorded = case.array("grad")
        assert (recorded is None) == ("ties" in case.id)  # a subgradient at ties is a choice
        if recorded is not None:
            if recorded.ndim == 4:
                recorded = np.moveaxis(recorded, 1, -1)
            assert_close(gradient, recorded, case.dtype, "gradient")


RECALL = [
    case
    for case in cases()
    if case.family in ("recall_ce_fn", "recall_ce_fn_ema", "recall_prec_ce_fn")
]


@one_of_each_family(RECALL)
def test_class_weights_of_recall(case):
    with jax.enable_x64(True):
        logits, labels, weights = arguments(case, case.dtype)
        alpha = 0.5 if "ema" in case.name else 1.0
        precision = case.family == "recall_prec_ce_fn"
        name = "recall_precision" if precision else "recall"
        objective = losses.objective(name, counters="released", alpha=alpha)
        state_of = jax.jit(functools.partial(recall_state, objective, case=case))
        state = state_of(logits, labels, weights)
        recorded = case.array("aux0")
        keep = slice(1 if case.input == CLASS_0_ABSENT else 0, None)
        assert_close(state.miss_rate[keep], recorded[keep], case.dtype, "recall weights")
        if precision and case.id not in EXCLUDED:
            recorded = case.array("aux1")
            assert_close(state.false_rate, recorded, case.dtype, "precision weights")


@each("adafocal_rule")
def test_adafocal_rule(case):
    recorded = case.array("gammas")
    assert (case["lambda"], case["switch_pt"]) == (1.0, 0.2)  # our defaults
    assert (case["gamma_min"], case["gamma_max"]) == (-2.0, 20.0)
    with jax.enable_x64(True):
        gamma = jnp.asarray(recorded[0])
        for step, gap in enumerate(case.array("gaps")):
            gamma = losses.adafocal_rule(gamma, jnp.asarray(gap), rate=case["lambda"])
            assert_close(gamma, recorded[step + 1], "float64", f"gamma after {step + 1} updates")
    assert step + 1 == 40


@each("adafocal_sequence")
def test_adafocal_sequence(case):
    """Ten updates, one after the other, of the library's own state."""
    options = {
        "rate": case["lambda"],
        "switch": case["switch_pt"],
        "gamma_min": case["gamma_min"],
        "gamma_max": case["gamma_max"],
        "binning": "released",
    }
    with jax.enable_x64(True):
        objective = losses.objective(
            "adafocal", num_bins=case["num_bins"], gamma_initial=case["gamma_initial"], **options
        )
        state = objective.init(10)

        @jax.jit
        def updated(state, confidence, hit):
            rows = losses.adafocal_rows(confidence, hit, jnp.ones_like(hit))
            return losses.adafocal_update(state, rows, **options)

        for step, (gamma, edges) in enumerate(adafocal_states(case)):
            if step > 0:
                hit = case.array("val_pred")[step - 1] == case.array("val_label")[step - 1]
                state = updated(state, case.array("val_conf")[step - 1], np.float32(hit))
            assert_close(state.edges, edges, "float64", f"edges after {step} updates")
            assert_close(state.gamma, gamma, "float64", f"gamma after {step} updates")
        assert step == 10


@each("adafocal_sequence")
@pytest.mark.parametrize("batch", ["train", pytest.param("train_x30", marks=pytest.mark.slow)])
def test_adafocal_in_a_sequence(case, batch):
    """The loss in each recorded state; recorded, since its statistics had float32 rounding."""
    suffix = batch.removeprefix("train")
    with jax.enable_x64(True):
        logits, labels, _ = arguments(case, jnp.float64, f"{batch}_")
        p = probabilities(logits, labels)

        def total(logits, state):
            values = losses.adafocal(logits, labels, state)
            return jnp.sum(values), values

        run = jax.jit(jax.value_and_grad(total, has_aux=True))
        for step, (gamma, edges) in enumerate(adafocal_states(case)):
            (value, values), gradient = run(logits, losses.AdaFocalState(gamma, edges))
            recorded = case.array(f"loss{suffix}")[step]
            assert_close(value, recorded, "float64", f"value after {step} updates")
            recorded = case.array(f"grad{suffix}")[step]
            assert_close(gradient, recorded, "float64", f"gradient after {step} updates")
            if batch == "train":
                chosen = case.array("gamma_per_sample")[step]
                base = np.where(chosen > 0, p.rest, 1 + p.true)
                recorded = base ** np.abs(chosen) * p.cross_entropy
                assert_close(values, recorded, "float64", f"gammas after {step} updates")
        assert step == 10


def adafocal_states(case):
    """List the recorded gammas and edges: before any update, then after each."""
    upper = case.array("upper")[:, -1:]
    edges = np.concatenate([case.array("lower"), upper], axis=1)
    return list(zip(case.array("gammas"), edges, strict=True))


@each("function")
def test_gamma_for(case):
    """The recorded closed formula loses its digits near 1/2; from there on 0 is the answer."""
    p, recorded = case.array("p"), case.array("gamma")
    ours = losses.gamma_for(p)
    assert ours.dtype == np.float64
    low = p <= 0.45
    assert low.sum() == 6
    assert_close(ours[low], recorded[low], "float64", "gamma")
    # what is left of the recorded values is rounding and the 1e-12 in its logarithm
    assert (p[~low] >= 0.5).all()
    assert (ours[~low] == 0).all()
    assert (np.abs(recorded[~low]) < 1e-10).all()


def test_every_recorded_case_runs_or_is_excluded():
    ids = [case.id for case in cases()]
    assert len(set(ids)) == len(ids)
    assert EXCLUDED.keys() <= set(ids)
    families = {case.family for case in cases() if case.kind in ("loss", "segmentation_loss")}
    assert families == LOSSES.keys()
