"""Uses of the library, right and wrong, as type checkers see them; never executed.

    python -m basedpyright && python -m mypy

A right use has the asserted type. A wrong one has a comment that expects its error, with mypy's
code of it, and both checkers fail if the error is missing. Settings: pyproject.toml.
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
from calib_jax.inference.noise_bound import NoiseBound
from calib_jax.metrics.bins import BrierParts

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
objective = losses.objective("adafocal")
assert_type(objective.value(objective.init(2), logits, labels), jax.Array)
losses.fcal  # type: ignore[attr-defined]
losses.focal(logits, labels, gama=3)  # type: ignore[call-arg]
losses.focal(logits)  # type: ignore[call-arg]
losses.focal(logits, labels, 3.0)  # type: ignore[call-arg]
losses.focal("logits", labels)  # type: ignore[arg-type]
losses.focal(logits, labels, gamma="high")  # type: ignore[arg-type]
losses.mmce_penalty(logits, labels, width=0.4)  # type: ignore[call-arg]
losses.objective()  # type: ignore[call-arg]
objective.values  # type: ignore[attr-defined]
objective.value(objective.init(2), logits)  # type: ignore[call-arg]
losses.make_objective(losses.focal, clock="epochs")  # type: ignore[arg-type]

# Metrics: the options and the value of each are known.
assert_type(metrics.ece(logits, labels), jax.Array)
assert_type(metrics.ece(logits, labels, weights, num_bins=20), jax.Array)
assert_type(metrics.ece(logits, labels, weights=weights), jax.Array)
assert_type(metrics.adaptive_ece(np.zeros((3, 2)), np.zeros(3, int), binning="mass"), jax.Array)
assert_type(metrics.brier_decomposition(logits, labels), BrierParts)
assert_type(metrics.reliability(logits, labels, num_bins=5, level=0.95), metrics.Reliability)
assert_type(metrics.ece.with_options(num_bins=10)(logits, labels), jax.Array)
assert_type(metrics.ece.value(metrics.ece.stat(logits, labels)), jax.Array)
assert_type(metrics.values_of({"ece": metrics.ece}, logits, labels), dict[str, Any])
metrics.named("ece", num_bins=20)(logits, labels)
# mypy alone needs this annotation: it takes metrics of unequal options for objects.
several: dict[str, metrics.Metric[..., Any]] = {"ece": metrics.ece, "nll": metrics.nll}
stream = metrics.Stream(several)
stream.update(logits, labels)
metrics.ece(metrics.Stated([0.5], [True]))
assert_type(stream.compute(), dict[str, Any])
stream.add(logits, labels)  # type: ignore[attr-defined]
metrics.eec  # type: ignore[attr-defined]
metrics.ece(logits, labels, num_bin=20)  # type: ignore[call-arg]
metrics.ece(logits, labels, num_bins="20")  # type: ignore[arg-type]
metrics.Stated([0.5])  # type: ignore[call-arg]
metrics.ece("logits", labels)  # type: ignore[arg-type]
metrics.nll(logits, labels, num_bins=3)  # type: ignore[call-arg]
metrics.Stream({"ece": "ece"})  # type: ignore[dict-item]
metrics.ece.valu(0)  # type: ignore[attr-defined]

# Inference: one metric or several.
assert_type(inference.noise_bound(metrics.ece, logits, labels, key=key), NoiseBound)
assert_type(inference.estimates(several, logits, labels, key=key), dict[str, inference.Estimate])
assert_type(inference.estimates(metrics.nll, logits, labels, key=key), inference.Estimate)
samples = inference.bootstrap(metrics.nll, logits, labels, key=key, num_resamples=10)
low, high = inference.interval(samples, 0.95)
inference.compare_calibration(logits, 2 * logits, labels).p_value
inference.group_errors(logits, labels, ["a", "b", "a"], key=key)[0].p_holm
inference.noise_bound(metrics.ece, logits, labels, key=key, draws=10)  # type: ignore[call-overload]
inference.noise_bound("ece", logits, labels, key=key)  # type: ignore[call-overload]
inference.compare_eces  # type: ignore[attr-defined]

# Calibrators are modules: pairs of fit and apply.
params = calibrators.temperature.fit(logits, labels, weights)
assert_type(calibrators.temperature.apply(params, logits), jax.Array)
assert_type(params.temperature, jax.Array)
calibrators.histogram.fit(logits, labels, num_bins=20)
calibrators.named("isotonic").apply(params, logits)
calibrators.named("isotonic").predict  # type: ignore[attr-defined]
params.temprature  # type: ignore[attr-defined]
calibrators.vector.apply(params, logits)  # type: ignore[arg-type]
calibrators.temprature  # type: ignore[attr-defined]
calibrators.temperature.fit(logits)  # type: ignore[call-arg]
calibrators.histogram.fit(logits, labels, bin=3)  # type: ignore[call-arg]

# Reports, figures, data, networks and training.
assert_type(report.score(logits, labels, metrics=several), report.Report)
report.score(logits, labels, bins=10)  # type: ignore[call-arg]
diagram = plots.reliability_diagram(metrics.reliability(logits, labels))
assert_type(diagram, matplotlib.figure.Figure)
plots.reliability_diagrm(diagram)  # type: ignore[attr-defined]
assert_type(data.named("digits"), data.Dataset)
data.digits(noise=0.1)  # type: ignore[call-arg]
assert_type(models.named("resnet20", num_classes=10), nn.Module)
assert_type(train.optimizer("sgd", 0.1), optax.GradientTransformation)
models.mlp(hidden=16)  # type: ignore[arg-type]
models.resnet20(classes=10)  # type: ignore[call-arg]
train.Plan(num_epoch=3, batch_size=128)  # type: ignore[call-arg]
train.predict(train.linen(models.mlp()), {}, data.digits().test, batch=3)  # type: ignore[call-arg]
train.optimiser  # type: ignore[attr-defined]
assert_type(calib_jax.binary(jnp.zeros(3)), jax.Array)
