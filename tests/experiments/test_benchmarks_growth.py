"""Exponents of growth, and the limits that the machine sets."""

import numpy as np
import pytest

from experiments.benchmarks import all as all_benchmarks
from experiments.benchmarks import growth, tables


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_exact(power):
    sizes = np.array([10, 100, 1000, 10_000])
    np.testing.assert_allclose(growth.exponent(sizes, 3 * sizes**power), (power, 0), atol=1e-6)


def test_the_standard_error_is_that_of_least_squares():
    sizes, values = np.array([1, 10, 100, 1000]), np.array([1, 20, 90, 1200])
    _, covariance = np.polyfit(np.log(sizes), np.log(values), 1, cov="unscaled")
    x, y = np.log(sizes), np.log(values)
    residual = y - np.polyval(np.polyfit(x, y, 1), x)
    wanted = np.sqrt(covariance[0, 0] * residual @ residual / 2)
    np.testing.assert_allclose(growth.exponent(sizes, values)[1], wanted, atol=1e-6)


def test_a_size_that_would_take_too_long_is_left_out(monkeypatch):
    asked = []

    def prepared(size):
        asked.append(size)
        return lambda: np.zeros(size)

    monkeypatch.setattr(growth, "PARTS", {"zeros": ("rows", (10, 100, 10**9), prepared)})
    rows = growth.measure("zeros", most=1000, seconds=60)
    assert asked == [row["size"] for row in rows] == [10, 100]
    assert len(growth.measure("zeros", most=1000, seconds=0)) == 1
    page = growth.SECTIONS["growth"].columns
    assert "±" in page["exponent of the time"](growth.growth(rows))


def test_limits_count_bytes_and_operations():
    machine = all_benchmarks.Machine(bytes=1e9, operations=1e9)
    of_metric = {"task": "metrics", "shape": "1000x100"}
    assert all_benchmarks.limit(of_metric, machine) == pytest.approx(4e5 / 1e9)
    for dtype, size in (("float32", 8e5), ("bfloat16", 4e5)):
        assert all_benchmarks.limit(of_metric | {"task": dtype}, machine) == size / 1e9
    resampled = {"task": "bootstrap", "shape": "1000x10", "resamples": 200}
    assert all_benchmarks.limit(resampled, machine) == pytest.approx(6 * 1000 * 200 / 1e9)
    step = {"task": "epoch", "flops": 5e8, "steps": 4}
    assert all_benchmarks.limit(step, machine) == pytest.approx(2.0)
    assert all_benchmarks.limit({"task": "fit"}, machine) is None


def test_the_page_shows_the_share_of_the_limit():
    ratio = {"low": 0.9, "median": 1.0, "high": 1.1}
    row = {"name": "ece", "task": "metrics", "seconds": 0.002, "limit": 0.001, "ratio": ratio}
    cells = {title: cell(row) for title, cell in all_benchmarks.COLUMNS.items() if title}
    assert cells["limit in ms (share of it reached)"] == "1 (50%)"
    assert tables.verdict(row | {"target": {"at_most": 2.0}}) == "kept"
