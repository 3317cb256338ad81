"""The metrics of a report: the defaults, a choice by name, and what can be a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import calib_jax.metrics as metrics_package
from calib_jax.core.arrays import as_array
from calib_jax.core.names import options_of
from calib_jax.metrics import Metric

DEFAULT_METRICS = (
    *("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "signed_gap", "aurc"),
)
# Without `classwise_ece` and `mce`: answers have no classes, and few of them share a bin.
ANSWER_METRICS = (
    *("accuracy", "nll", "brier", "ece", "adaptive_ece", "signed_gap", "confidence_auroc", "aurc"),
)
# Of rows with options of their own, which are no classes.
OPTION_METRICS = tuple(name for name in DEFAULT_METRICS if name != "classwise_ece")
# Metrics of the top label that differ for the event "class 1" of two classes.
OF_EVENT = (
    *("ece", "adaptive_ece", "mce", "adaptive_mce", "average_calibration_error", "signed_gap"),
    *("ks_error", "ecce"),
    *("smooth_ece", "overconfidence", "underconfidence", "rms_calibration_error"),
    *("debiased_rms_calibration_error", "adaptive_debiased_rms_calibration_error"),
)
PER_CLASS = ("per_class_recall", "per_class_precision", "per_class_ece")
# Metrics of more than one number, which are no row of a report.
SEVERAL_NUMBERS = (
    *PER_CLASS,
    *("per_class_iou", "reliability", "adaptive_reliability", "classwise_reliability"),
    *("brier_decomposition", "by_correctness", "confident_set", "confusion_counts"),
)
# Metrics of two data sets, see `out_of_distribution`.
OF_TWO_SETS = ("ood_auroc", "ood_aupr", "ood_fpr95", "ood_roc_curve")

Metrics: TypeAlias = Mapping[str, Metric[..., Any]]


def convention_of(metric: Metric[..., Any]) -> str:
    """Describe the binning of a metric, which is needed to compare its values with others."""
    options = metric.defaults() | dict(metric.options)
    if "num_bins" not in options:
        return ""
    # The terms of equal-mass metrics have no `num_bins`, because they bin after sorting all rows.
    of_mass = "num_bins" not in options_of(metric.prepare)
    text = f"{options['num_bins']} bins of equal {'mass' if of_mass else 'width'}"
    if "edges" in options or "zero_counts" in options:
        edges = options.get("edges", "right")
        text += ", (lo, hi]" if edges == "right" else f", edges {edges}"
    return text


def chosen_metrics(
    metrics: Sequence[str | Metric[..., Any]] | Metrics, num_bins: int
) -> dict[str, Metric[..., Any]]:
    """Return metrics by name, and set `num_bins` for metrics given by name with this option."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if isinstance(metrics, str):
        raise TypeError(f"metrics must be a list of names, got the string {metrics!r}.")
    chosen = {}
    for metric in metrics:
        if isinstance(metric, Metric):
            chosen[metric.name] = metric
        else:
            named = metrics_package.named(metric)
            binned = "num_bins" in named.defaults()
            chosen[metric] = named.with_options(num_bins=num_bins) if binned else named
    return chosen


def metrics_of_rows(
    metrics: Sequence[str | Metric[..., Any]] | Metrics,
    num_bins: int,
    costs: Any,
    abstain_cost: float | None,
) -> dict[str, Metric[..., Any]]:
    """Return the metrics of the rows of a report, with the costs of decisions if they are given."""
    several = chosen_metrics(metrics, num_bins)
    for label, metric in several.items():
        if metric.name in SEVERAL_NUMBERS:
            raise no_row(label)
        if metric.name in OF_TWO_SETS:
            raise TypeError(
                f"score: {label} compares two data sets: call report.out_of_distribution, or"
                " experiments.evaluate --ood."
            )
    if costs is not None or abstain_cost is not None:
        given = None if costs is None else np.asarray(as_array(costs))
        for cost in ("expected_cost", "stated_cost"):
            several[cost] = metrics_package.named(cost, abstain_cost=abstain_cost, costs=given)
    return several


def no_row(name: str) -> TypeError:
    """Return the error for a metric that is more than one number."""
    return TypeError(
        f"score: a row of the report is one number, and {name} is more: per_class adds a table of"
        " the classes, and inference.estimates takes any metric."
    )
