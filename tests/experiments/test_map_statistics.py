"""Statistics of the map on simulated records: noise, tests, ranks, the rule and its regret."""

import numpy as np
import pytest
import scipy.stats

from experiments.map import report, statistics
from experiments.map.measures import FOLDS
from experiments.map.settings import BASELINE, Setting

LOSSES = (BASELINE, "focal_3", "brier")
TEXTS = ("banking77", "clinc150", "newsgroups")
DECAYS = (0.0, 1e-3)


def record(value, *, temperature=1.0, seeds=0.0, folds=0.0, generator=None):
    """A record whose metrics have this mean, with noise of seeds and folds."""
    generator = generator or np.random.default_rng(0)
    columns = value + seeds * generator.standard_normal(10)
    without = [
        value + folds * generator.standard_normal(FOLDS) / np.sqrt(FOLDS * (FOLDS - 1))
        for _ in range(2)
    ]
    names = ("ce2_before", "ce2_after")
    return {
        "seeds": list(range(1, 11)),
        "values": {**dict.fromkeys(names, columns), "temperature": [temperature] * 10},
        "without_test": dict.fromkeys(names, without[0]),
        "without_validation": {"ce2_after": without[1]},
    }


def records_of(value, temperature=lambda texts, decay: 1.0, **noise):
    """Records of every cell; `value` is a function of the cell."""
    return {
        Setting(texts, loss, decay): record(
            value(texts, loss, decay), temperature=temperature(texts, decay), **noise
        )
        for texts in TEXTS
        for loss in LOSSES
        for decay in DECAYS
    }


def test_draws_have_the_variance_of_seeds_and_folds():
    generator = np.random.default_rng(1)
    found = records_of(lambda *cell: 1.0, seeds=0.2, folds=0.3, generator=generator)
    cells = statistics.cells(found, "ce2_after", draws=40_000)
    for row, (texts, decay) in enumerate(cells.places):
        for column, loss in enumerate(cells.losses):
            of = found[Setting(texts, loss, decay)]
            values = of["values"]["ce2_after"]
            wanted = np.var(values, ddof=1) / 10
            for kind in ("without_test", "without_validation"):
                folds = np.asarray(of[kind]["ce2_after"])
                wanted += (FOLDS - 1) / FOLDS * np.square(folds - folds.mean()).sum()
            assert cells.draws[:, row, column].var() == pytest.approx(wanted, rel=0.05)
    assert cells.losses[0] == BASELINE
    assert len(cells.places) == 6


def test_losses_with_the_same_noise_have_a_certain_difference():
    cells = statistics.cells(records_of(lambda texts, loss, decay: len(loss), seeds=1.0, folds=1.0),
        "ce2_before", draws=50)  # fmt: skip
    gains = statistics.gains(cells)
    np.testing.assert_allclose(gains.value, [[6.0, 8.0]] * 6)
    np.testing.assert_allclose(gains.high - gains.low, 0, atol=1e-9)


def test_a_gain_is_tested_as_a_paired_t_test_over_seeds():
    generator = np.random.default_rng(2)
    found = records_of(lambda *cell: 1.0, seeds=0.2, generator=generator)
    gains = statistics.gains(statistics.cells(found, "ce2_before", draws=40_000))
    first, other = (
        found[Setting("banking77", loss, 0.0)]["values"]["ce2_before"] for loss in LOSSES[:2]
    )
    wanted = scipy.stats.ttest_rel(first, other)
    assert gains.p[0, 0] == pytest.approx(wanted.pvalue, abs=0.01)
    interval = wanted.confidence_interval(0.9)
    assert (gains.low[0, 0], gains.high[0, 0]) == pytest.approx(tuple(interval), abs=0.01)


def test_the_slope_is_that_of_a_regression():
    temperatures = {0.0: 2.0, 1e-3: 0.5}
    found = records_of(
        lambda texts, loss, decay: -3 * np.log(temperatures[decay]) * (loss == "brier"),
        lambda texts, decay: temperatures[decay],
        seeds=0.1,
        generator=np.random.default_rng(3),
    )
    cells = statistics.cells(found, "ce2_before").of(("clinc150",))
    slopes = statistics.slopes(cells)
    gain = cells.means[:, 0] - cells.means[:, 2]
    fitted = scipy.stats.linregress(np.log(cells.temperature), gain).slope
    assert slopes.value[1] == pytest.approx(fitted)
    deviation = np.std(cells.draws[:, :, 0] - cells.draws[:, :, 2], axis=0)
    assert slopes.high[1] - slopes.low[1] == pytest.approx(
        2 * scipy.stats.t(9).ppf(0.95) * np.hypot(*deviation) / np.log(4), rel=0.05
    )
    assert slopes.p[1] < 1e-3 < slopes.p[0]


def test_holm_rejects_step_by_step():
    p = np.array([[0.04, 0.011], [0.2, 0.013]])
    adjusted = statistics.holm(p)
    np.testing.assert_allclose(adjusted, [[0.08, 0.044], [0.2, 0.044]])


def test_ranks_with_their_uncertainty():
    found = records_of(
        lambda texts, loss, decay: {BASELINE: 3.0, "focal_3": 1.0, "brier": 1.01}[loss],
        seeds=0.1,
        generator=np.random.default_rng(4),
    )
    mean, low, high = statistics.ranks(statistics.cells(found, "ce2_before"))
    assert mean[0] == low[0] == high[0] == 3  # certain
    assert low[1] < mean[1] < high[1]
    assert mean.sum() == pytest.approx(6)


def test_the_rule_takes_the_best_loss_of_each_band():
    temperature = np.array([0.5, 0.79, 1.0, 2.5])
    scores = np.array([[3.0, 1, 2], [3, 4, 2.5], [1, 2, 3], [5, 5, 4]])
    # Below 0.8 the means are 3, 2.5 and 2.25; between 1.25 and 1.8 there is no place.
    assert statistics.rule(temperature, scores) == {0: 2, 1: 0, 2: 0, 3: 2}
    assert statistics.band_of(np.array([0.8, 1.25, 1.8])).tolist() == [1, 2, 3]


def made(best):
    """Records where focal loss is best above T = 1 and cross-entropy below, up to `best`."""
    errors = {0.0: {BASELINE: 0.04, "focal_3": 0.01, "brier": 0.0225}}
    errors[1e-3] = {BASELINE: 0.01, "focal_3": 0.04, "brier": 0.0225}
    return records_of(
        lambda texts, loss, decay: errors[decay][loss] * best.get((texts, loss), 1.0),
        lambda texts, decay: 2.0 if decay == 0 else 0.6,
        folds=1e-5,
    )


def test_the_regret_of_a_rule_that_transfers_is_zero():
    found = made({})
    cells = [statistics.cells(found, f"ce2_{when}") for when in ("before", "after")]
    chosen, regrets, share = statistics.regrets(*cells)
    names = [cells[0].losses[chosen[band]] for band in range(4)]
    assert names == [BASELINE, BASELINE, "focal_3", "focal_3"]
    assert regrets["rule"].value == pytest.approx(0, abs=1e-12)
    # Cross-entropy has .2 and .1, the best has .1 twice; all three tie on average or are worse.
    assert regrets["cross-entropy"].value == pytest.approx(0.05)
    assert regrets["a loss at random"].value == pytest.approx(0.05)
    assert share == 1


def test_the_regret_of_a_rule_that_does_not_transfer():
    found = made({("newsgroups", "brier"): 0.04})  # root .03, below all others there
    cells = [statistics.cells(found, f"ce2_{when}") for when in ("before", "after")]
    _, regrets, _ = statistics.regrets(*cells)
    assert regrets["rule"].value == pytest.approx(0.1 - 0.03)
    assert regrets["rule"].low <= regrets["rule"].value <= regrets["rule"].high


def test_incomplete_maps_are_refused():
    found = {s: r for s, r in made({}).items() if s.texts != "newsgroups"}
    cells = statistics.cells(found, "ce2_before")
    with pytest.raises(ValueError, match="cannot be tested: the map has no complete place"):
        statistics.regrets(cells, cells)
    found = {s: r for s, r in found.items() if s.loss != BASELINE}
    with pytest.raises(ValueError, match="has a record of cross-entropy and of every other loss"):
        statistics.cells(found, "ce2_before")


def test_the_page_and_the_figure_show_every_loss(tmp_path):
    found = made({})
    text = report.page(found)
    assert "| T above 1.8 | focal_3 |" in text
    assert "| rule | 0.00 | [0.00, 0.00] |" in text
    cells = statistics.cells(found, "ce2_before")
    titles = [panel.get_title() for panel in report.figure(cells).axes]
    assert titles[:2] == ["focal_3", "brier"]
    partial = {s: r for s, r in found.items() if s.texts == "banking77"}
    assert "The records of one data set or more are missing." in report.page(partial)
