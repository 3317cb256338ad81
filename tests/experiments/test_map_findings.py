"""The tests of the map's rules, and its page and figure, on simulated records."""

import numpy as np
import pytest

from experiments.map import figure, findings, report, statistics, tables
from experiments.map.settings import (
    BASELINE,
    CONDITIONS,
    FOCAL,
    LOSSES,
    TEXTS,
    TWO_WEIGHT_DECAYS,
    WEIGHT_DECAYS,
    Setting,
    settings,
)
from tests.experiments.map_records import metrics_of, record, records_of

TEMPERATURES = dict(zip(WEIGHT_DECAYS, (2.2, 1.5, 1.1, 0.92, 0.7, 0.57), strict=True))
FAMILY = 198


def temperature(texts, decay):
    return TEMPERATURES[decay]


def helps_above_one(texts, loss, decay):
    """Cross-entropy has no error at T = 1; each loss moves its best temperature a bit further."""
    return 0.03 * (np.log(TEMPERATURES[decay]) - 0.1 * list(LOSSES).index(loss)) ** 2


@pytest.fixture(scope="module")
def whole():
    generator = np.random.default_rng(0)
    noise = {"seeds": 3e-4, "folds": 3e-4, "generator": generator}
    found = records_of(helps_above_one, temperature, **noise)
    for setting in settings("conditions", best=statistics.two_best(found)):
        found[setting] = record(
            helps_above_one(*setting[:3]) * 1.1,
            temperature=1.02 * TEMPERATURES[setting.weight_decay],
            count=5,
            names=metrics_of(setting.texts),
            **noise,
        )
    for setting in settings("methods"):
        found[setting] = record(0.02, names=metrics_of(setting.texts), **noise)
    return found


def without(found, **fields):
    """Leave out the records whose settings have these fields."""
    return {
        setting: of
        for setting, of in found.items()
        if any(getattr(setting, name) != value for name, value in fields.items())
    }


def test_slopes_need_all_six_weight_decays_of_all_data_sets(whole):
    cells = statistics.cells(whole, "ce2_before")
    _, adjusted, states = findings.slopes(cells)
    assert states == [findings.HOLDS] * 11
    assert adjusted.shape == (3, 11)
    lacks = without(whole, loss="brier", texts="clinc150", weight_decay=2e-3)
    partial = findings.slopes(statistics.cells(lacks, "ce2_before"))
    brier = list(LOSSES).index("brier") - 1
    assert np.isnan(partial.estimate.value).sum() == 1
    assert np.isnan(partial.adjusted[1, brier])
    assert partial.states[brier] == ""
    assert partial.states.count(findings.HOLDS) == 10  # their p can only fall
    reverse = records_of(
        lambda texts, loss, decay: (
            helps_above_one(texts, BASELINE, decay)
            if (texts, loss) == ("newsgroups", "mdca")
            else helps_above_one(texts, loss, decay)
        ),
        temperature,
        seeds=1e-6,
    )
    assert findings.slopes(statistics.cells(reverse, "ce2_before")).states[-1] == findings.FAILS


def signs_of(found):
    cells = statistics.cells(found, "ce2_before")
    adjusted = statistics.holm(statistics.gains(cells).p, FAMILY)
    return findings.focal_signs(cells, adjusted, places=18, family=FAMILY)


def test_the_signs_of_focal_loss(whole):
    # T is above 1.5 at one weight decay (1.5 itself is not), and below 0.9 at two.
    assert signs_of(whole) == (9, 9, 9, findings.HOLDS)
    lacks = without(whole, loss=FOCAL, texts="clinc150", weight_decay=0.0)
    assert signs_of(lacks) == (8, 8, 8, "")
    wrong = dict(whole)
    place = Setting("banking77", FOCAL, 5e-3)
    wrong[place] = record(0.0, seeds=1e-4)
    assert signs_of(wrong) == (9, 8, 8, findings.FAILS)
    # With noise that hides the gains, the state waits for Holm's correction over all settings.
    noisy = records_of(helps_above_one, temperature, seeds=3.0, generator=np.random.default_rng(1))
    for setting in noisy:
        if setting.loss == FOCAL:
            base = noisy[setting._replace(loss=BASELINE)]["values"]["ce2_before"]
            sign = 1 if TEMPERATURES[setting.weight_decay] > 1 else -1
            noise = np.tile([1.0, -1.0], 5)
            noisy[setting]["values"]["ce2_before"] = base - sign * 1e-3 + noise
    assert signs_of(noisy) == (9, 9, 0, findings.FAILS)
    assert signs_of(without(noisy, loss="mdca", texts="clinc150")).state == ""


def test_an_error_within_half_a_point_is_not_worse():
    errors = {BASELINE: 0.08, FOCAL: 0.084, "brier": 0.0851}
    found = records_of(
        lambda texts, loss, decay: errors.get(loss, 0.09),
        temperature,
        seeds=1e-3,
        generator=np.random.default_rng(2),
    )
    found = without(found, loss="mdca", texts="clinc150")
    cells = statistics.cells(found, "error")
    not_worse, worse = findings.not_worse(cells)
    for column, loss in enumerate(cells.losses[1:]):
        for row, place in enumerate(cells.places):
            if loss == "mdca" and place.texts == "clinc150":
                assert not not_worse[row, column]
                assert not worse[row, column]
                continue
            values = [
                np.asarray(found[place.setting(of)]["values"]["error"]) for of in (loss, BASELINE)
            ]
            change = values[0] - values[1]
            reach = 1.8331 * change.std(ddof=1) / np.sqrt(10)  # 95 % of t with 9 degrees
            assert not_worse[row, column] == (change.mean() + reach < 0.005)
            assert worse[row, column] == (change.mean() - reach > 0.005)
    assert not_worse.any()
    assert worse.any()


def test_a_condition_is_compared_with_the_map_at_its_temperature(whole):
    of_map = [statistics.Place(texts, decay) for texts in TEXTS for decay in WEIGHT_DECAYS]
    places = [
        statistics.Place(texts, decay, condition)
        for texts in TEXTS
        for condition in CONDITIONS
        for decay in TWO_WEIGHT_DECAYS
    ]
    losses = (BASELINE, FOCAL)
    cells = statistics.cells(whole, "ce2_before", losses=losses, places=[*of_map, *places])
    found = findings.explained(cells, FOCAL)
    assert (found.places, found.outside) == (18, 18)  # T of decay 0 is above the map's
    squares = []
    for place in places[1::2]:
        gain = {
            of: np.mean(whole[of.setting(BASELINE)]["values"]["ce2_before"])
            - np.mean(whole[of.setting(FOCAL)]["values"]["ce2_before"])
            for of in (place, *of_map)
        }
        curve = [gain[statistics.Place(place.texts, decay)] for decay in WEIGHT_DECAYS[::-1]]
        x = np.log([TEMPERATURES[decay] for decay in WEIGHT_DECAYS[::-1]])
        at = np.log(1.02 * TEMPERATURES[place.weight_decay])
        same = gain[statistics.Place(place.texts, place.weight_decay)]
        squares.append([(gain[place] - same) ** 2, (gain[place] - np.interp(at, x, curve)) ** 2])
    wanted = np.sqrt(np.mean(squares, axis=0))
    assert (found.by_decay, found.by_temperature) == pytest.approx(tuple(wanted))
    assert 0 <= found.share <= 1

    # The data decide: if y depends on T the second prediction is right, if on decay the first.
    for follows_temperature in (True, False):
        simulated = {}
        for place in (*of_map, *places):
            scale = 0.6 if place.condition and place.weight_decay == 0 else 1.0
            t = scale * TEMPERATURES[place.weight_decay]
            y = np.log(t if follows_temperature else TEMPERATURES[place.weight_decay])
            for loss in losses:
                simulated[place.setting(loss)] = record(
                    1.0 - y * (loss == FOCAL),
                    temperature=t,
                    seeds=1e-4,
                    count=5 if place.condition else 10,
                )
        cells = statistics.cells(simulated, "ce2_before", losses=losses, places=[*of_map, *places])
        state = findings.HOLDS if follows_temperature else findings.FAILS
        assert findings.explained(cells, FOCAL).state == state


def test_the_page_of_the_whole_map(whole):
    text = report.page(whole)
    assert "lacks" not in text
    assert "| map | 216 of 216 | 72 of 72 | 72 of 72 | 72 of 72 | 2.2 |" in text
    assert "| conditions | 144 of 144 |" in text
    assert "The finding holds: 9 of 9 places with such a T have the stated sign" in text
    assert text.count("\n") < 600


def test_a_partial_map_has_values_but_no_results(whole):
    partial = {
        setting: of
        for setting, of in whole.items()
        if setting.texts == "banking77" and setting.loss in (BASELINE, FOCAL)
        and not setting.condition and (setting.loss == BASELINE or setting.weight_decay < 1e-3)
    }  # fmt: skip
    text = report.page(partial)
    for sentence in (
        "| map | 10 of 216 | 10 of 72 | 0 of 72 | 0 of 72 |",
        "Test 3 lacks 26 of 36 settings. So far: 1 of 1 places",
        "4 of 198 tests have their settings",
        "0 of 33 slopes have their six settings",
        "No place has all twelve losses yet",
        "None of 54 settings has a record yet.",
    ):
        assert sentence in text, sentence
    assert "The finding" not in text
    assert "nan" not in text
    alone = {setting: of for setting, of in partial.items() if setting.loss == BASELINE}
    assert "| map | 6 of 216 | 6 of 72 |" in report.page(alone)
    nothing = figure.figure(statistics.cells(alone, "ce2_before")).axes
    assert not any(panel.axison for panel in nothing)
    panels = figure.figure(statistics.cells(partial, "ce2_before")).axes
    assert [panel.get_title() for panel in panels if panel.axison] == [FOCAL]


def test_the_figure_has_a_panel_for_each_loss(whole):
    drawing = figure.figure(statistics.cells(whole, "ce2_before"))
    titles = [panel.get_title() for panel in drawing.axes if panel.axison]
    assert titles == list(LOSSES)[1:]
    drawn = drawing.axes[1].containers[0].lines[0]
    cells = statistics.cells(whole, "ce2_before").of(("banking77",))
    order = np.argsort(cells.temperature)
    np.testing.assert_allclose(drawn.get_xdata(), cells.temperature[order])
    gain = cells.means[order, 0] - cells.means[order, 2]
    np.testing.assert_allclose(drawn.get_ydata(), 1000 * gain)


def test_the_best_loss_of_a_band(whole):
    (row,) = (
        line for line in tables.by_band(whole) if line.startswith("| root-CE2 before T | below 0.8")
    )
    found = [
        statistics.Place(texts, decay) for texts in TEXTS for decay in (2e-3, 5e-3)
    ]  # T .7 and .57
    means = {
        loss: np.mean(
            [
                np.sqrt(max(np.mean(whole[p.setting(loss)]["values"]["ce2_before"]), 0))
                for p in found
            ]
        )
        for loss in LOSSES
    }
    first, second = sorted(means, key=means.get)[:2]
    assert f"| 6 | {first} {100 * means[first]:.1f} (100 %), {second} " in row


def test_losses_that_tie_share_the_draws():
    """A squared error below 0 counts as 0, so that several losses may be the best."""
    found = records_of(
        lambda texts, loss, decay: -0.01 if loss in (FOCAL, "mdca") else 0.01,
        temperature,
        seeds=1e-4,
    )
    (row,) = (
        line for line in tables.by_band(found) if line.startswith("| root-CE2 before T | above 1.8")
    )
    assert f"| {FOCAL} 0.0 (50 %), mdca 0.0 (50 %), " in row


def test_a_folder_without_cross_entropy_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no record of cross-entropy"):
        report.read_all(tmp_path)


def test_a_network_that_learned_nothing_is_named(whole):
    (setting, *_) = (key for key in whole if key.loss == "brier")
    values = whole[setting]["values"]
    assert report.untrained(whole) == []
    collapsed = {**values, "error": [0.987] * len(values["error"])}
    found = {**whole, setting: {**whole[setting], "values": collapsed}}
    assert f"{setting.name} (99%)" in report.untrained(found)[1]
    assert report.untrained(found)[1] in report.page(found)
