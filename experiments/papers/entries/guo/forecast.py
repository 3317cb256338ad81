"""The forecaster of the blog, who says 80 % on 30 days and is right on 18 of them."""

import jax.numpy as jnp

from calib_jax import metrics
from experiments.papers.entry import Entry
from experiments.papers.judge import rules
from experiments.papers.judge.values import Value


def statistic() -> dict[str, Value]:
    """Compute ECE and MCE of 30 binary forecasts of confidence .8 with 18 hits."""
    logits = jnp.tile(jnp.log(jnp.array([0.8, 0.2])), (30, 1))
    labels = (jnp.arange(30) >= 18).astype(int)
    ece, mce = (float(metric(logits, labels)) for metric in (metrics.ece, metrics.mce))
    close = abs(ece - 0.2) < 1e-6 and abs(mce - 0.2) < 1e-6
    return {"both are 0.2": Value(float(close)), "ECE": Value(ece), "MCE": Value(mce)}


ENTRY = Entry(claims={"guo-forecast-gap": rules.true("both are 0.2")}, statistic=statistic)
