"""Statistics of the map on simulated records: noise and tests."""

import numpy as np
import pytest
import scipy.stats

from experiments.map import statistics
from experiments.map.measures import FOLDS
from experiments.map.settings import BASELINE, Setting
from tests.experiments.map_records import record, records_of

LOSSES = (BASELINE, "focal_3", "brier")
TEXTS = ("banking77", "clinc150", "newsgroups")
DECAYS = (0.0, 5e-4)
SHAPE = {"losses": LOSSES, "decays": DECAYS}


def cells_of(found, metric="ce2_before", **options):
    return statistics.cells(found, metric, losses=LOSSES, **options)


def test_noise_has_the_variance_of_seeds_and_folds():
    generator = np.random.default_rng(1)
    found = records_of(lambda *cell: 1.0, seeds=0.2, folds=0.3, generator=generator, **SHAPE)
    cells = cells_of(found, "ce2_after")
    draws = cells.draws()
    for row, place in enumerate(cells.places):
        for column, loss in enumerate(cells.losses):
            of = found[place.setting(loss)]
            values = of["values"]["ce2_after"]
            wanted = np.var(values, ddof=1) / 10
            for kind in ("without_test", "without_validation"):
                folds = np.asarray(of[kind]["ce2_after"])
                wanted += (FOLDS - 1) / FOLDS * np.square(folds - folds.mean()).sum()
            assert np.square(cells.noise[row, column]).sum() == pytest.approx(wanted)
            assert draws[:, row, column].var() == pytest.approx(wanted, rel=0.15)
    assert cells.losses[0] == BASELINE
    assert len(cells.places) == 6


def test_losses_with_the_same_noise_have_a_certain_difference():
    found = records_of(lambda texts, loss, decay: len(loss), seeds=1.0, folds=1.0, **SHAPE)
    gains = statistics.gains(cells_of(found))
    np.testing.assert_allclose(gains.value, [[6.0, 8.0]] * 6)
    np.testing.assert_allclose(gains.high - gains.low, 0, atol=1e-9)


def test_a_gain_is_tested_as_a_paired_t_test_over_seeds():
    generator = np.random.default_rng(2)
    found = records_of(lambda *cell: 1.0, seeds=0.2, generator=generator, **SHAPE)
    gains = statistics.gains(cells_of(found))
    first, other = (
        found[Setting("banking77", loss, 0.0)]["values"]["ce2_before"] for loss in LOSSES[:2]
    )
    wanted = scipy.stats.ttest_rel(first, other)
    assert gains.p[0, 0] == pytest.approx(wanted.pvalue)
    interval = wanted.confidence_interval(0.9)
    assert (gains.low[0, 0], gains.high[0, 0]) == pytest.approx(tuple(interval))


def test_five_seeds_have_four_degrees_of_freedom():
    generator = np.random.default_rng(5)
    place = statistics.Place("clinc150", 0.0, "width64")
    found = {
        place.setting(loss): record(1.0, count=5, seeds=0.1, generator=generator) for loss in LOSSES
    }
    cells = cells_of(found, places=[place])
    wanted = scipy.stats.ttest_rel(
        *(found[place.setting(loss)]["values"]["ce2_before"] for loss in (BASELINE, "brier"))
    )
    assert statistics.gains(cells).p[0, 1] == pytest.approx(wanted.pvalue)


def test_the_slope_is_that_of_a_regression():
    temperatures = {0.0: 2.0, 5e-4: 0.5}
    found = records_of(
        lambda texts, loss, decay: -3 * np.log(temperatures[decay]) * (loss == "brier"),
        lambda texts, decay: temperatures[decay],
        seeds=0.1,
        generator=np.random.default_rng(3),
        **SHAPE,
    )
    cells = cells_of(found).of(("clinc150",))
    slopes = statistics.slopes(cells)
    gain = cells.means[:, 0] - cells.means[:, 2]
    fitted = scipy.stats.linregress(np.log(cells.temperature), gain).slope
    assert slopes.value[1] == pytest.approx(fitted)
    variance = sum(
        np.var(
            np.subtract(
                *(
                    found[place.setting(loss)]["values"]["ce2_before"]
                    for loss in (BASELINE, "brier")
                )
            ),
            ddof=1,
        )
        / 10
        for place in cells.places
    )
    reach = 2 * scipy.stats.t(9).ppf(0.95) * np.sqrt(variance) / np.log(4)
    assert slopes.high[1] - slopes.low[1] == pytest.approx(reach)
    assert slopes.p[1] < 1e-3 < slopes.p[0]


def test_holm_rejects_step_by_step():
    p = np.array([[0.04, 0.011], [0.2, 0.013]])
    adjusted = statistics.holm(p)
    np.testing.assert_allclose(adjusted, [[0.08, 0.044], [0.2, 0.044]])


def test_holm_of_a_part_of_the_tests_is_an_upper_bound():
    generator = np.random.default_rng(6)
    p = generator.random((4, 6)) ** 4
    whole = statistics.holm(p)
    part = np.where(generator.random(p.shape) < 0.5, p, np.nan)
    adjusted = statistics.holm(part, p.size)
    assert (np.isnan(adjusted) == np.isnan(part)).all()
    there = np.isfinite(part)
    assert (adjusted[there] >= whole[there]).all()
    np.testing.assert_allclose(
        adjusted[there], statistics.holm(np.where(there, p, 1.0))[there], rtol=1e-12
    )


def three_losses():
    """Records of three losses at two weight decays."""
    errors = {BASELINE: 0.04, "focal_3": 0.01, "brier": 0.0225}
    return records_of(lambda texts, loss, decay: errors[loss] + decay, folds=1e-5, **SHAPE)


def test_cells_without_a_record_are_nan():
    found = three_losses()
    del found[Setting("clinc150", "brier", 0.0)], found[Setting("newsgroups", BASELINE, 0.0)]
    cells = cells_of(found)
    assert len(cells.places) == 5  # a place needs cross-entropy
    missing = np.isnan(cells.means)
    assert missing.sum() == 1
    assert missing[cells.places.index(statistics.Place("clinc150", 0.0)), 2]
    assert len(cells.complete().places) == 4
    assert np.isnan(statistics.gains(cells).p).sum() == 1


def test_a_network_that_learned_nothing_is_in_no_comparison():
    found = three_losses()
    dead = Setting("clinc150", "brier", 0.0)
    found[dead]["values"]["error"] = [0.99] * 10
    cells = cells_of(found)
    assert np.isnan(cells.means).sum() == 1
    assert np.isnan(cells.means[cells.places.index(statistics.Place("clinc150", 0.0)), 2])
    assert not np.isnan(cells_of(found, dead=True).means).any()


def test_a_record_may_lack_a_metric():
    found = three_losses()
    for loss in (BASELINE, "brier"):
        del found[Setting("clinc150", loss, 0.0)]["values"]["auroc_before"]
    del found[Setting("clinc150", "brier", 5e-4)]["values"]["auroc_before"]
    cells = cells_of(found, "auroc_before")
    assert cells.places == [statistics.Place("clinc150", 5e-4)]
    assert np.isnan(cells.means).tolist() == [[False, False, True]]
    assert len(cells_of(found).complete().places) == 6


def test_the_two_best_losses_wait_for_both_data_sets():
    def value(texts, loss, decay):
        # MDCA would be the best with 20 Newsgroups, on which the rule is not made.
        if loss in ("brier", "mmce", "focal_3"):
            return 0.01
        return 0.0 if (texts, loss) == ("newsgroups", "mdca") else 0.02 + 0.01 * (loss != "mdca")

    found = records_of(value)
    assert sorted(statistics.two_best(found)) == ["brier", "mmce"]
    del found[Setting("newsgroups", "mmce", 5e-4)]
    assert sorted(statistics.two_best(found)) == ["brier", "mmce"]
    del found[Setting("clinc150", "adafocal", 5e-4)]
    assert statistics.two_best(found) == []
