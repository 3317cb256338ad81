"""Sixty uses of the library, right and wrong, as a type checker sees them; never executed.

    python -m basedpyright

A right use has the asserted type. A wrong one has a comment that expects its error, and the check
fails if the error is missing. Settings: [tool.basedpyright] in pyproject.toml.
"""

from typing import Any, assert_type

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
import optax

import calib_jax
from calib_jax import calibrators, data, inference, losses, metrics, models, plots, report, train

logits = jnp.zeros((3, 2))
labels = jnp.zeros(3, int)
weights = jnp.ones(3)
key = jax.random.key(0)

# Losses: functions of logits and labels, with options by keyword.
assert_type(losses.cross_entropy(logits, labels), jax.Array)
assert_type(losses.focal(logits, labels, gamma=2.0), jax.Array)
assert_type(losses.focal(np.zeros((3, 2)), np.zeros(3, int), gamma=np.ones(3)), jax.Array)
assert_type(losses.dual_focal(logits, labels, weighting="gradient"), jax.Array)
assert_type(losses.generalized_brier(logits, labels, gamma=2.0, beta=2.0), jax.Array)
assert_type(losses.mmce_penalty(logits, labels, weights, axis_name=None), jax.Array)
assert_type(losses.objective("flsd53"), losses.Objective)
losses.objective("adafocal").init(2)
losses.fcal  # pyright: ignore[reportAttributeAccessIssue]
losses.focal(logits, labels, gama=3)  # pyright: ignore[reportCallIssue]
losses.focal(logits)  # pyright: ignore[reportCallIssue]
losses.focal(logits, labels, 3.0)  # pyright: ignore[reportCallIssue]
losses.focal("logits", labels)  # pyright: ignore[reportArgumentType]
losses.focal(logits, labels, gamma="high")  # pyright: ignore[reportArgumentType]
losses.mmce_penalty(logits, labels, width=0.4)  # pyright: ignore[reportCallIssue]
losses.objective()  # pyright: ignore[reportCallIssue]

# Metrics: the options and the value of each are known.
assert_type(metrics.ece(logits, labels), jax.Array)
assert_type(metrics.ece(logits, labels, weights, num_bins=20), jax.Array)
assert_type(metrics.ece(logits, labels, weights=weights), jax.Array)
assert_type(metrics.adaptive_ece(np.zeros((3, 2)), np.zeros(3, int), binning="mass"), jax.Array)
assert_type(metrics.brier_decomposition(logits, labels), metrics.BrierParts)
assert_type(metrics.reliability(logits, labels, num_bins=5, level=0.95), metrics.Reliability)
assert_type(metrics.ece.with_options(num_bins=10)(logits, labels), jax.Array)
assert_type(metrics.ece.value(metrics.ece.stat(logits, labels)), jax.Array)
assert_type(metrics.values_of({"ece": metrics.ece}, logits, labels), dict[str, Any])
metrics.named("ece", num_bins=20)(logits, labels)
stream = metrics.Stream({"ece": metrics.ece, "nll": metrics.nll})
stream.update(logits, labels)
metrics.eec  # pyright: ignore[reportAttributeAccessIssue]
metrics.ece(logits, labels, num_bin=20)  # pyright: ignore[reportCallIssue]
metrics.ece(logits, labels, num_bins="20")  # pyright: ignore[reportArgumentType]
metrics.ece(logits)  # pyright: ignore[reportCallIssue]
metrics.ece("logits", labels)  # pyright: ignore[reportArgumentType]
metrics.nll(logits, labels, num_bins=3)  # pyright: ignore[reportCallIssue]
metrics.ece.with_options(bins=10)  # pyright: ignore[reportCallIssue]
metrics.ece.valu(0)  # pyright: ignore[reportAttributeAccessIssue]

# Inference: one metric or several.
assert_type(inference.noise_bound(metrics.ece, logits, labels, key=key), inference.NoiseBound)
several = {"ece": metrics.ece, "nll": metrics.nll}
assert_type(inference.estimates(several, logits, labels, key=key), dict[str, inference.Estimate])
assert_type(metrics.estimates(metrics.nll, logits, labels, key=key), inference.Estimate)
samples = metrics.bootstrap(metrics.nll, logits, labels, key=key, num_resamples=10)
low, high = metrics.interval(samples, 0.95)
inference.compare_calibration(logits, 2 * logits, labels).p_value
inference.group_errors(logits, labels, ["a", "b", "a"], key=key)[0].p_holm
inference.noise_bound(metrics.ece, logits, labels, key=key, draws=10)  # pyright: ignore[reportCallIssue]
inference.noise_bound("ece", logits, labels, key=key)  # pyright: ignore[reportCallIssue, reportArgumentType]
inference.compare_eces  # pyright: ignore[reportAttributeAccessIssue]

# Calibrators are modules: pairs of fit and apply.
params = calibrators.temperature.fit(logits, labels, weights)
assert_type(calibrators.temperature.apply(params, logits), jax.Array)
assert_type(params.temperature, jax.Array)
calibrators.histogram.fit(logits, labels, num_bins=20)
calibrators.temprature  # pyright: ignore[reportAttributeAccessIssue]
calibrators.temperature.fit(logits)  # pyright: ignore[reportCallIssue]
calibrators.histogram.fit(logits, labels, bin=3)  # pyright: ignore[reportCallIssue]

# Reports, figures, data, networks and training.
assert_type(report.score(logits, labels, num_bins=10), report.Report)
report.score(logits, labels, bins=10)  # pyright: ignore[reportCallIssue]
diagram = plots.reliability_diagram(metrics.reliability(logits, labels))
assert_type(diagram, matplotlib.figure.Figure)
plots.reliability_diagrm(diagram)  # pyright: ignore[reportAttributeAccessIssue]
assert_type(data.named("digits"), data.Dataset)
data.digits(noise=0.1)  # pyright: ignore[reportCallIssue]
assert_type(models.named("resnet20", num_classes=10), nn.Module)
assert_type(train.optimizer("sgd", 0.1), optax.GradientTransformation)
train.optimiser  # pyright: ignore[reportAttributeAccessIssue]
assert_type(calib_jax.binary(jnp.zeros(3)), jax.Array)
