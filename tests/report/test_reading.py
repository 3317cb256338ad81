"""The README's explanation of a report: its table is that of its code, and its words hold."""

import re

import numpy as np
import pytest
from scipy import stats

from tests.experiments.processes import ROOT

README = (ROOT / "calib_jax" / "report" / "README.md").read_text(encoding="utf-8")
PAGE = README.split("## What the numbers mean")[1].split("## Options")[0]
NUMBER = re.compile(r"[-+]?\d*\.\d+")


@pytest.fixture(scope="module")
def forecasts():
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names = {}
    exec("from calib_jax import report\nprint = lambda _: None\n" + code, names)
    return names["forecasts"]


def test_the_table_is_that_of_the_code(forecasts):
    """Also on other versions of JAX, whose random numbers may differ: within .006."""
    (table,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    skipped = ("1,000 examples", "6 more notes", "Examples needed")
    printed = [line for line in str(forecasts).splitlines() if not line.startswith(skipped)]
    shown = [line for line in table.splitlines() if not line.startswith(skipped)]
    pairs = zip(filter(None, printed), filter(None, shown), strict=True)
    for actual, wanted in pairs:
        assert actual.split()[0] == wanted.split()[0]
        # Sentences count in points, hundredths of the table's numbers.
        tolerance = (0.02 if " p " in wanted else 0.006) * (100 if ":" in wanted else 1)
        numbers = [[float(number) for number in NUMBER.findall(line)] for line in (actual, wanted)]
        np.testing.assert_allclose(*numbers, atol=tolerance)


def test_the_words_hold(forecasts):
    stated, rainy = np.repeat([0.9, 0.6], 500), np.repeat([0.8, 0.6], 500)
    assert forecasts.value("error") == pytest.approx(1 - np.mean(rainy), abs=1e-6)
    nll = -np.mean(rainy * np.log(stated) + (1 - rainy) * np.log(1 - stated))
    assert forecasts.value("nll") == pytest.approx(nll, abs=1e-6)
    assert round(nll, 4) == 0.6089
    assert round(np.log(2), 4) == 0.6931
    brier = 2 * np.mean(rainy * (1 - stated) ** 2 + (1 - rainy) * stated**2)
    assert forecasts.value("brier") == pytest.approx(brier, abs=1e-6)
    assert forecasts.value("ece") == pytest.approx(np.mean(np.abs(stated - rainy)), abs=1e-5)
    parts = forecasts.value("refinement_nll") + forecasts.value("calibration_nll")
    assert parts == pytest.approx(forecasts.value("nll"), abs=1e-6)
    same = forecasts.value("refinement_nll", "milder")
    assert forecasts.value("refinement_nll") == pytest.approx(same, abs=1e-4)
    # The floor and the p-value, from the two binomial distributions.
    number = np.arange(501)
    gaps = [np.abs(number / 500 - p) / 2 for p in (0.9, 0.6)]
    laws = [stats.binom(500, p).pmf(number) for p in (0.9, 0.6)]
    eces, law = gaps[0][:, None] + gaps[1][None], laws[0][:, None] * laws[1][None]
    assert np.sum(law * eces) == pytest.approx(0.0141, abs=5e-5)
    assert np.sum(law[eces >= 0.05 - 1e-9]) == pytest.approx(0.0002, abs=5e-5)
