"""Scores of clustered examples: width of intervals, folds, parts, what the report says."""

import csv
import io
import json

import jax
import numpy as np
import pytest

from calib_jax import calibrators, metrics, report
from calib_jax.report import caveats, tables

FEW = {"metrics": ["accuracy", "nll"], "num_resamples": 50}


def images(num_images=40, num_pixels=400, num_right=30):
    """Return logits, labels and clusters of images whose pixels are all equal."""
    image = np.repeat(np.arange(num_images), num_pixels)
    labels = np.where(image < num_right, 0, 1)
    return np.tile(np.float32([1, 0, -1]), (len(image), 1)), labels, image


def half_width(scored, metric="accuracy"):
    (row,) = (row for row in scored.rows if row.metric == metric)
    return (row.high - row.low) / 2


def test_equal_pixels_count_once():
    """400 equal pixels per image: the interval by pixel is sqrt(400) = 20 times too narrow."""
    logits, labels, image = images()
    options = {"metrics": ["accuracy"], "num_resamples": 400}
    by_image = half_width(report.score(logits, labels, clusters=image, **options))
    by_pixel = half_width(report.score(logits, labels, **options))
    assert by_image == pytest.approx(1.645 * np.sqrt(0.75 * 0.25 / 40), rel=0.15)
    assert by_pixel == pytest.approx(1.645 * np.sqrt(0.75 * 0.25 / 16_000), rel=0.15)
    assert 16 < by_image / by_pixel < 24


@pytest.fixture(scope="module")
def clustered():
    """Score 5 examples in each of 24 clusters, some of weight 0, with everything there is."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((120, 3)).astype(np.float32)
    labels = random.integers(0, 3, 120)
    names = np.char.add("text ", random.permutation(np.repeat(np.arange(24), 5)).astype(str))
    weights = np.where(names == "text 3", 0, 1).astype(np.float32)
    groups = np.where(np.isin(names, ["text 1", "text 2", "text 3"]), "few", "many")
    scored = report.score(
        logits,
        labels,
        weights=weights,
        groups=groups,
        clusters=names,
        calibrate="temperature",
        cross_fit=6,
        compare=-logits,
        per_class=True,
        **FEW,
    )
    return scored, (logits, labels, weights, groups, names)


def test_every_interval_is_that_of_whole_clusters(clustered):
    scored, (logits, labels, weights, groups, names) = clustered
    (change,) = (c for c in scored.changes if (c.metric, c.after) == ("nll", "other"))
    key = jax.random.key(0)  # the default seed of `score`
    wanted = metrics.paired_bootstrap(
        metrics.nll, logits, -logits, labels, weights, key=key, num_resamples=50, clusters=names
    )
    np.testing.assert_allclose([change.low, change.high], [wanted.low, wanted.high], rtol=1e-4)
    few = groups == "few"
    wanted = metrics.estimates(
        metrics.nll, logits[few], labels[few], weights[few], key=key, num_resamples=50,
        clusters=names[few],
    )  # fmt: skip
    parts = [*scored.groups, *scored.classes]
    find = {(p.part, p.metric, p.predictions): p for p in parts}
    part = find["few", "nll", "as given"]
    np.testing.assert_allclose([part.low, part.high], [wanted.low, wanted.high], rtol=1e-4)
    assert (part.clusters, find["many", "nll", "other"].clusters) == (2, 21)
    present = names[(labels == 1) & (weights > 0)]
    part = find["1", "per_class_recall", "as given"]
    assert (part.examples, part.clusters) == (len(present), len(set(present)))


def test_the_report_says_what_was_resampled(clustered):
    scored, _ = clustered
    few = "Fewer than 30 clusters (all examples: 23, class 0: "
    for text in (str(scored), scored._repr_markdown_()):
        assert "120 examples (weighted) in 23 clusters; whole clusters are resampled." in text
        assert "in 6 folds of whole clusters" in text
        assert few in text
        assert caveats.BANDS in text
    assert "group  n    clusters  predictions" in str(scored)
    record = json.loads(tables.as_json(scored))
    assert record["settings"]["clusters"] == 23
    assert record["groups"][0]["clusters"] == 2
    assert any(note.startswith(few) for note in record["notes"])
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(scored))))
    assert {row["clusters"] for row in rows if row["table"] == "metrics"} == {"23"}
    logits, labels, image = images(30, 2)
    enough = str(report.score(logits, labels, clusters=image, **FEW))
    assert "60 examples in 30 clusters" in enough
    assert "Fewer than" not in enough
    assert "clusters" not in str(report.score(logits, labels, **FEW))


def test_many_small_parts_are_counted():
    counts = {f"class {k}": k for k in range(9)}
    (sentence,) = caveats.few_clusters(counts)
    assert "class 4: 4 and 4 more)" in sentence
    assert caveats.few_clusters({"all examples": 30}) == []


def test_folds_contain_whole_clusters():
    """With one fold per cluster, each temperature is fitted without the cluster that it scales."""
    random = np.random.default_rng(1)
    logits = 3 * random.standard_normal((36, 3)).astype(np.float32)
    labels, cluster = random.integers(0, 3, 36), random.permutation(np.arange(36) // 9)
    scored = report.score(
        logits, labels, clusters=cluster, calibrate="temperature", cross_fit=4, **FEW
    )
    found = sorted(fold["temperature"] for fold in scored.calibrator["params"])
    wanted = [
        float(calibrators.temperature.fit(logits[cluster != k], labels[cluster != k]).temperature)
        for k in range(4)
    ]
    np.testing.assert_allclose(found, sorted(wanted), rtol=1e-3)
    with pytest.raises(ValueError, match=r"lie in \[2, 4\], the number of clusters, got 5"):
        report.score(logits, labels, clusters=cluster, calibrate="temperature", cross_fit=5, **FEW)


def test_refusals():
    logits, labels, image = images(3, 2)
    sentence = r"clusters must have shape \(6,\), one for each example, got \(5,\)"
    with pytest.raises(ValueError, match=sentence):
        report.score(logits, labels, clusters=image[1:], **FEW)
    with pytest.raises(TypeError, match="clusters must be integers or strings, got float64"):
        report.score(logits, labels, clusters=image / 2, **FEW)
