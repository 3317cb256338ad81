"""The costs of decisions in a report, before and after calibration, and their file."""

import numpy as np
import pytest

from calib_jax import metrics, report
from calib_jax.report import read

COSTS = np.array([[0.0, 1, 4], [2, 0, 1], [5, 2, 0]])


@pytest.mark.slow
def test_costs_stand_in_the_report_before_and_after_calibration():
    random = np.random.default_rng(0)
    logits = (3 * random.standard_normal((200, 3))).astype(np.float32)
    labels = (logits + 3 * random.gumbel(size=(200, 3))).argmax(axis=1)
    data = logits[:100], labels[:100]
    options = {"costs": COSTS, "abstain_cost": 0.8}
    actual = report.score(
        *data,
        metrics=["accuracy"],
        num_resamples=20,
        calibrate="temperature",
        fit_on=(logits[100:], labels[100:]),
        **options,
    )
    for name in ("expected_cost", "stated_cost"):
        rows = [row for row in actual.rows if row.metric == name]
        assert [row.predictions for row in rows] == ["as given", "temperature"]
        wanted = metrics.named(name, **options)(*data)
        np.testing.assert_allclose(rows[0].value, wanted, rtol=1e-6)
        assert rows[0].low <= rows[0].value <= rows[0].high
    changes = {change.metric: change for change in actual.changes}
    assert changes["expected_cost"].p_value is not None
    assert changes["stated_cost"].value > 0
    with pytest.raises(ValueError, match="costs must have a row for each of the 3 classes"):
        report.score(*data, costs=COSTS[:2])


def test_costs_are_read_from_a_file(tmp_path):
    file = tmp_path / "costs.csv"
    file.write_text("0, 1, 4\n2, 0, 1\n5, 2, 0\n")
    np.testing.assert_array_equal(read.costs(str(file)), COSTS)
    assert read.costs(None) is None
    for broken in ("a,b\n1,2\n", "1,2\n3\n"):
        file.write_text(broken)
        with pytest.raises(
            ValueError, match=r"costs\.csv cannot be read as .*; give a CSV file of numbers, a row"
        ):
            read.costs(str(file))
    file.write_text("\n")
    with pytest.raises(ValueError, match=r"costs\.csv .*contained no data"):
        read.costs(str(file))


def test_costs_are_no_address(monkeypatch):
    """NumPy would fetch a name that begins with http."""
    opened = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **_: opened.append(args))
    with pytest.raises(FileNotFoundError, match=r"there is no file http://localhost/c\.csv"):
        read.costs("http://localhost/c.csv")
    assert opened == []
