"""Scores from streams: the values of the whole, with no interval, in files that say so."""

import json

import numpy as np
import pytest

from calib_jax import calibrators, metrics
from experiments.evaluation import streamed_scores

SEVERAL = {name: metrics.named(name) for name in ("accuracy", "nll")}


def test_values_are_those_of_the_whole(tmp_path):
    random = np.random.default_rng(0)
    logits = 3 * random.standard_normal((200, 3)).astype(np.float32)
    labels = np.argmax(logits / 3 + random.gumbel(size=logits.shape), axis=-1)
    weights = (np.arange(200) % 4 > 0).astype(np.float32)
    first, second = (
        [(logits[i : i + 50], labels[i : i + 50], weights[i : i + 50]) for i in starts]
        for starts in ((0, 50), (100, 150))
    )
    scored = streamed_scores.score(
        lambda: iter(second), [*SEVERAL], calibrate="temperature", fit_on=lambda: iter(first)
    )
    params = calibrators.temperature.fit(logits[:100], labels[:100], weights[:100])
    z, rest = logits[100:], (labels[100:], weights[100:])
    whole = metrics.values_of(SEVERAL, z, *rest)
    calibrated = metrics.values_of(SEVERAL, calibrators.temperature.apply(params, z), *rest)
    assert scored.num_examples == 75
    assert scored.before == pytest.approx({k: float(v) for k, v in whole.items()}, rel=1e-5)
    assert scored.after == pytest.approx({k: float(v) for k, v in calibrated.items()}, rel=1e-5)
    assert scored.save(tmp_path) == ["values.json", "values.txt"]
    saved = json.loads((tmp_path / "values.json").read_text())
    assert saved["before"] == scored.before
    assert "no intervals" in saved["intervals"]
    temperature = pytest.approx(float(params.temperature), rel=1e-5)
    fitted = {"name": "temperature", "state": "converged", "temperature": temperature}
    assert saved["calibrator"] == fitted
    assert "no intervals" in (tmp_path / "values.txt").read_text()


def test_values_are_read_back_and_damaged_ones_are_refused(tmp_path):
    assert streamed_scores.read(tmp_path) is None
    blocks = [(9 * np.eye(3, dtype=np.float32) - 4, np.arange(3), np.ones(3))]
    scored = streamed_scores.score(
        lambda: blocks, SEVERAL, num_bins=7, calibrate="", fit_on=lambda: blocks
    )
    scored.save(tmp_path / "report")
    assert streamed_scores.read(tmp_path) == scored
    path = tmp_path / "report" / "values.json"
    contents = json.loads(path.read_text())
    for name, wrong in (("before", {"nll": "one"}), ("num_bins", None), ("after", [])):
        path.write_text(json.dumps({**contents, name: wrong}))
        with pytest.raises(
            ValueError, match=r"values.json holds no streamed values; experiments.e"
        ):
            streamed_scores.read(tmp_path)
    streamed_scores.remove(tmp_path)
    assert streamed_scores.read(tmp_path) is None
