"""The recorded values of the papers' released metrics, against the library's.

One test per recorded case, in the precision it was recorded in; those of other inputs than the
first are `slow`. Every recorded array is compared. `METRICS` says for
each released function which public metrics, with which options, it is. What the recordings are and
where they come from: tests/golden/README.md.
"""

import functools
import json
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import inference, metrics
from calib_jax.core.binning import BINNING_RULES
from calib_jax.metrics.contract import Predictions
from calib_jax.metrics.terms import Columns

from . import value_of

FOLDER = pathlib.Path(__file__).parents[1] / "golden"

TOLERANCE = {"float64": {"rtol": 1e-6, "atol": 1e-9}, "float32": {"rtol": 2e-4, "atol": 1e-5}}

# Cases that the library does not reproduce, and why. They do not run.
_TIE_ON_EDGE = (
    "equal confidences lie on an edge that is interpolated from them: the last bit of the softmax"
    " decides which bin they fall into"
)
_SUBNORMAL = (
    "a true class has the probability 1.7e-39: torch keeps it and it falls into the first bin, XLA"
    " flushes it to 0, which falls into none; the float64 cases run"
)
EXCLUDED = {
    "cece_b15|m_x30_N64_K10|float32": _SUBNORMAL,
    "cece_b10|m_x30_N64_K10|float32": _SUBNORMAL,
    "cece_perclass_b15|m_x30_N64_K10|float32": _SUBNORMAL,
    "adaece_b15|m_ties_N64_K10|float32": _TIE_ON_EDGE,
    "adaece_b10|m_ties_N64_K10|float32": _TIE_ON_EDGE,
    "adaece_b15|m_ties_N64_K10|float64": _TIE_ON_EDGE,
    "adaece_b10|m_ties_N64_K10|float64": _TIE_ON_EDGE,
    "ada_adaece_bins_b15|m_ties_N64_K10|float32": _TIE_ON_EDGE,
}


class Case(types.SimpleNamespace):
    """One recorded call, with the fields of the manifest for it and for its group."""

    input = None
    unstable = False

    @property
    def num_bins(self):
        """How many bins, under the names it has."""
        found = self.hyperparameters
        return found["n_bins"] if "n_bins" in found else found["num_bins"]

    def array(self, name):
        """Return a recorded array."""
        shared = self.input is not None and name in ("logits", "labels")
        return recordings()[f"{self.input if shared else self.id}/{name}"]

    @property
    def results(self):
        """List the names of what was recorded, inputs aside."""
        start = f"{self.id}/"
        names = {key.removeprefix(start) for key in recordings() if key.startswith(start)}
        return names - INPUTS

    def data(self):
        """Return logits and labels."""
        return jnp.asarray(self.array("logits"), self.dtype), jnp.asarray(
            self.array("labels"), jnp.int32
        )


INPUTS = {
    *("logits", "labels", "logits_in", "logits_ood", "resample_indices", "gt", "pred"),
    "probs",
}


@functools.cache
def recordings():
    """Read the arrays."""
    with np.load(FOLDER / "metrics.npz") as arrays:
        return dict(arrays)


@functools.cache
def cases():
    """List every recorded case."""
    groups = json.loads((FOLDER / "metrics.json").read_text())["groups"]
    return [Case(**(group | case)) for group in groups for case in group["cases"]]


# --------------------------------------------------------------------------------------------
# Which metrics a case is. Each function: case -> {recorded name: our value}.


def scalar(metric, **options):
    """Say that `value` is one of our metrics; options that are functions look at the case."""

    def values(case):
        chosen = {k: v(case) if callable(v) else v for k, v in options.items()}
        return {"value": value_of(metric, *case.data(), **chosen)}

    return values


def bins(case):
    return case.num_bins


# Their classes end with the largest label, and a probability of 0 falls into no bin.
RELEASED_CLASSES = {"classes": "released", "zero_counts": False, "num_bins": bins}


def classwise(case):
    logits, labels = case.data()
    found = scalar(metrics.classwise_ece, **RELEASED_CLASSES)(case)
    if "per_class" in case.results:
        errors = value_of(
            metrics.per_class_ece, logits, labels, num_bins=case.num_bins, zero_counts=False
        )
        found["per_class"] = errors[: int(labels.max()) + 1]
    return found


def correct_and_wrong_per_bin(case):
    curve = value_of(metrics.reliability, *case.data(), num_bins=case.num_bins, edges="left")
    hits = jnp.where(curve.weight > 0, curve.accuracy * curve.weight, 0)
    return {"value": jnp.stack([hits, curve.weight - hits], axis=1)}


def classification(case):
    view = Predictions(*case.data())
    return {
        "accuracy": value_of(metrics.accuracy, *case.data()),
        "predictions": view.predicted,
        "confidences": view.confidence,
    }


LISTS = {
    "ece": "ece",
    "mce": "mce",
    "ace": "average_calibration_error",
    "l2": "rms_calibration_error",
}


def list_metrics(case):
    options = {"num_bins": case.num_bins, "edges": "ceil"}
    return {
        theirs: value_of(metrics.named(ours), *case.data(), **options)
        for theirs, ours in LISTS.items()
    }


def per_bin(curve):
    """Name what AdaFocal's functions return per bin; an empty bin has zeros there."""
    fields = {
        "prop": curve.weight / jnp.sum(curve.weight),
        "acc": curve.accuracy,
        "conf": curve.confidence,
        "gap": curve.gap,
    }
    return {name: jnp.where(curve.weight > 0, field, 0) for name, field in fields.items()}


def ece_and_bins(case):
    options = {"num_bins": case.num_bins, "edges": "ceil"}
    curve = value_of(metrics.reliability, *case.data(), **options)
    return {"ece": value_of(metrics.ece, *case.data(), **options), **per_bin(curve)}


def adaptive_ece_and_bins(case):
    options = {"num_bins": case.num_bins, "binning": "released"}
    curve = value_of(metrics.adaptive_reliability, *case.data(), **options)
    # Their shares are of all examples, binned or not.
    share = {"prop": curve.weight / len(case.array("labels"))}
    return {
        "adaece": value_of(metrics.adaptive_ece, *case.data(), **options),
        "lower": curve.lower,
        "upper": curve.upper,
        **(per_bin(curve) | share),
    }


def adaptive_ece(case):
    options = {"num_bins": case.num_bins, "binning": "released"}
    curve = value_of(metrics.adaptive_reliability, *case.data(), **options)
    return {
        "value": value_of(metrics.adaptive_ece, *case.data(), **options),
        "bin_edges": jnp.append(curve.lower, curve.upper[-1:]),
    }


def bins_of_given_confidences(case):
    confidence = jnp.asarray(case.array("confidences"))
    hit = jnp.asarray(case.array("predictions") == case.array("labels"), confidence.dtype)
    cell = BINNING_RULES["ceil"](confidence, case.num_bins)
    sums = Columns({"confidence": confidence, "hit": hit}, cell, case.num_bins).weigh(None)
    return {
        "confidences": confidence,
        "predictions": case.array("predictions"),
        "counts": metrics.reliability.value(sums).weight,
        "ece": metrics.ece.value(sums),
        "mce": metrics.mce.value(sums),
    }


def out_of_distribution(case):
    inside, outside = (jnp.asarray(case.array(f"logits_{side}")) for side in ("in", "ood"))
    logits = jnp.concatenate([inside, outside])
    labels = jnp.asarray(np.repeat([0, 1], [len(inside), len(outside)]))
    view = Predictions(inside, jnp.zeros(len(inside), jnp.int32))

    scores = {"entropy": "entropy", "confidence": "max_confidence"}
    auroc = functools.partial(value_of, metrics.named("ood_auroc"), logits, labels)
    areas = {f"auroc_{theirs}": auroc(score=ours) for theirs, ours in scores.items()}
    return {**areas, "entropy_in": view.entropy, "confidence_in": view.confidence}


def bootstrap(case):
    logits, labels = case.data()
    metric = metrics.ece.with_options(num_bins=case.num_bins)
    plugin = value_of(metric, logits, labels)
    resamples = case.array("resample_indices").astype(int)
    assert len(resamples) == case.hyperparameters["num_samples"]
    samples = jnp.stack([value_of(metric, logits[i], labels[i]) for i in resamples])
    level = 1 - case.hyperparameters["alpha"] / 100
    low, high = inference.interval(samples, level=level, method="basic", estimate=plugin)
    return {
        "plugin": plugin,
        "bootstrap_estimates": samples,
        "interval": jnp.stack([low, 2 * plugin - jnp.median(samples), high]),
    }


def segmentation(case):
    labels = jnp.asarray(case.array("gt"), jnp.int32)
    num_classes = case.hyperparameters["n_classes"]
    logits = 2 * jax.nn.one_hot(case.array("pred"), num_classes, dtype=case.dtype)
    weights = jnp.asarray(labels < num_classes, jnp.float32)
    names = {
        "confusion": "confusion_counts",
        "overall_acc": "accuracy",
        "mean_acc": "mean_recall",
        "mean_prec": "mean_precision",
        "fwavacc": "frequency_weighted_iou",
        "mean_iou": "mean_iou",
        "iou": "per_class_iou",
        "acc": "per_class_recall",
        "prec": "per_class_precision",
    }
    chosen = {theirs: metrics.named(ours) for theirs, ours in names.items()}
    return metrics.values_of(chosen, logits, labels, weights)


def kernel_density(case):
    found = case.hyperparameters
    metric = metrics.named("kde_calibration_error").with_options(
        kind=found["mc_type"], bandwidth=found["bandwidth"], p=found["p"]
    )
    p = case.array("probs")
    logits, labels = jnp.log(jnp.asarray(p)), jnp.asarray(case.array("labels"), jnp.int32)
    return {"value": value_of(metric, logits, labels)}


def mmce_script(case):
    with_options = {
        "inverse_temperature": case.hyperparameters["T"],
        "num_bins": case.hyperparameters["N"],
    }
    found = metrics.mmce_script(
        jnp.asarray(case.array("probs")),
        jnp.asarray(case.array("labels"), jnp.int32),
        **with_options,
    )
    return {
        "brier": found.brier,
        "nll": found.nll,
        "ece": found.ece,
        "bin_conf": found.confidence,
        "bin_acc": found.accuracy,
        "bin_count": found.weight,
    }


LIST_FUNCTIONS = (
    "expected_calibration_error,maximum_calibration_error,average_calibration_error,l2_error"
)
NEUTRAL = {"excluded_class": 1}  # of the sentiment classes of SST
METRICS = {
    "ECELoss": scalar(metrics.ece, num_bins=bins),
    "_ECELoss": scalar(metrics.ece, num_bins=bins),
    "_ECELoss_sst": scalar(metrics.ece, num_bins=bins, **NEUTRAL),
    "AdaptiveECELoss": adaptive_ece,
    "_AdaptiveECELoss": scalar(metrics.adaptive_ece, num_bins=bins, binning="released", **NEUTRAL),
    "ClasswiseECELoss": classwise,
    "_SCELoss_sst": scalar(metrics.classwise_ece, **RELEASED_CLASSES, **NEUTRAL),
    "BrierScoreLoss": scalar(metrics.brier),
    "nn.CrossEntropyLoss": scalar(metrics.nll),
    "ConfAccLoss": correct_and_wrong_per_bin,
    "test_classification_net_logits": classification,
    LIST_FUNCTIONS: list_metrics,
    "expected_calibration_error": ece_and_bins,
    "adaECE_error_mukhoti": adaptive_ece_and_bins,
    "_populate_bins": bins_of_given_confidences,
    "get_roc_auc": out_of_distribution,
    "bootstrap_uncertainty": bootstrap,
    "runningScore": segmentation,
    "get_ece_kde": kernel_density,
    "script": mmce_script,
}

# Gradients of a metric are nobody's: a metric is a number.
NOT_COMPARED = {"grad_probs"}
RUN = [case for case in cases() if case.id not in EXCLUDED]


# The first case of each function, on ordinary logits and in single precision.
FIRST = {
    re.sub(r"_b\d+$", "", case.id.partition("|")[0]): case.id
    for case in sorted(RUN, key=lambda c: (c.input != "m_normal_N64_K10", c.dtype), reverse=True)
}.values()


def marked(case):
    """Mark a case of other inputs as slow."""
    return pytest.param(case, id=case.id, marks=[] if case.id in FIRST else pytest.mark.slow)


@pytest.mark.parametrize("case", [marked(case) for case in RUN])
def test_metric(case):
    with jax.enable_x64(case.dtype == "float64"):
        found = METRICS[case.function](case)
        assert found.keys() == case.results - NOT_COMPARED
        for name, actual in found.items():
            recorded = np.asarray(case.array(name), np.float64)
            if recorded.shape == (1,):
                recorded = recorded[0]
            actual = np.asarray(actual, np.float64)
            assert actual.shape == recorded.shape, name
            np.testing.assert_allclose(actual, recorded, **TOLERANCE[case.dtype], err_msg=name)


def test_every_recorded_case_runs_or_is_excluded():
    ids = [case.id for case in cases()]
    assert len(set(ids)) == len(ids)
    assert EXCLUDED.keys() <= set(ids)
    assert {case.id for case in cases() if case.unstable} <= EXCLUDED.keys()
    assert {case.function for case in cases()} == METRICS.keys()
