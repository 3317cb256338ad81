"""A report made by hand, so that tests of pages compile nothing."""

import numpy as np

from calib_jax import plots
from calib_jax.report.results import Change, Part, Report, Row

HOSTILE = "<script>alert('x')</script> & \"a\" `b` [c](http://example.com)"


def sample(scale, seed, num_rows=80):
    """Return logits that are `scale` times too large, and labels."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal((num_rows, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    return (scale * logits).astype(np.float32), labels


def bins():
    edges = np.linspace(0, 1, 6)
    return plots.Bins(
        edges[:-1],
        edges[1:],
        weight=np.array([0.0, 4, 20, 30, 46]),
        confidence=np.array([np.nan, 0.35, 0.52, 0.71, 0.93]),
        accuracy=np.array([np.nan, 0.25, 0.45, 0.65, 0.81]),
        low=np.array([np.nan, 0.05, 0.28, 0.5, 0.69]),
        high=np.array([np.nan, 0.67, 0.63, 0.78, 0.89]),
    )


def scored():
    """Return a report of two predictions, one with a name that is HTML."""
    rows = [
        Row("nll", 1.2345, 1.1, 1.4, "as given"),
        Row("nll", 1.0123, 0.9, 1.1, HOSTILE),
        Row("ece", 0.1234, 0.05, 0.2, "as given", "5 bins", "noise bound", 0.0432, 0.011),
        Row("ece", 0.0567, 0.0, 0.1, HOSTILE, "5 bins", "noise bound", 0.0321, 0.4),
    ]
    changes = [
        Change("nll", -0.2222, -0.3, -0.1, "as given", HOSTILE, 0.002, 0.002),
        Change("ece", -0.0667, -0.1, 0.01, "as given", HOSTILE, 0.03, 0.03, "noise bound"),
    ]
    groups = [
        Part("ece", 0.1 * k, 0.0, 0.9, model, part=f"site {k}", examples=size)
        for k, size in ((1, 1000), (2, 900), (10, 80))
        for model in ("as given", HOSTILE)
    ]
    return Report(
        settings={
            "examples": 1980,
            "left_out": 0,
            "clusters": None,
            "classes": 3,
            "weighted": False,
            "level": 0.9,
            "interval": "valid",
            "resamples": 1000,
            "seed": 0,
            "bins": 5,
            "versions": {"calib_jax": "1.2.3", "jax": "4.5.6"},
            "predictions": HOSTILE,
        },
        rows=rows,
        changes=changes,
        classes=[],
        groups=groups,
        reliability={"as given": bins(), HOSTILE: bins()},
        calibrators={},
        notes=[f"A note on {HOSTILE}."],
    )
