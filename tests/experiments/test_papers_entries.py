"""Every entry with runs, on fabricated records: its verdicts follow what the records show."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics, train
from experiments.papers import entry, scales
from experiments.papers.entries import compared, text_trainings
from experiments.papers.entries.guo import trained as guo_trained
from experiments.papers.entries.mukhoti import translation as mukhoti_translation
from experiments.papers.judge import comparisons, estimates, rules, verdicts
from experiments.papers.judge.estimates import Columns, Predictions
from experiments.papers.judge.values import Value
from experiments.papers.page import repetitions, trained_tables
from experiments.papers.store import measures, records, runs, translations
from tests.experiments.processes import ROOT

pytestmark = pytest.mark.papers

ROWS = 600
ENTRIES = {name: tested for name, tested in entry.catalogue().items() if tested.runs}
ABOUT = {"commit": "abc", "date": "2026-01-02", "device": "cpu", "processor": "x", "seconds": 60.0}
RATES = [0.1] * 10 + [0.01] * 6 + [0.001] * 4  # two drops, as in the papers


def predicted(seed, sharpness, rows=ROWS, classes=10):
    """Predictions whose logits are `sharpness` times those of the true distribution."""
    draws = np.random.default_rng(0)
    shared = 1.5 * draws.normal(size=(rows, classes))
    labels = np.argmax(shared + draws.gumbel(size=shared.shape), axis=-1)
    noise = 0.02 * np.random.default_rng(seed).normal(size=shared.shape)
    return Predictions((sharpness * (shared + noise)).astype(np.float32), labels)


def log(size):
    """Rows in which the test NLL falls until epoch 10 and rises after it; norms grow with size."""
    rows = []
    for epoch, rate in enumerate(RATES, start=1):
        late = max(0.0, epoch - 10)
        row = {"epoch": float(epoch), "step": epoch, "learning_rate": rate, "weight_norm": size}
        row["training_gradient_median"] = size / 10
        row["train_loss"], row["train_error"] = size / epoch, 0.0
        for part in ("test", "training", "validation"):
            row |= {
                f"{part}_nll": 2 - epoch / 10 if part == "training" else 1 - 0.01 * epoch + late,
                f"{part}_ece": 0.1 + 0.01 * late,
                f"{part}_error": 0.5 - 0.01 * epoch,
                f"{part}_feature_norm": size,
            }
            for group, share in (("correct", 0.6), ("wrong", 0.4)):
                row |= {
                    f"{part}_by_correctness_{group}_share": share,
                    f"{part}_by_correctness_{group}_confidence": 0.1 * size,
                    f"{part}_by_correctness_{group}_nll": 1 / size,
                    f"{part}_by_correctness_{group}_entropy": 1 / size / epoch,
                }
        rows.append(row)
    return rows


def arrays_of(name, sharpness, seed):
    """The arrays of a measure: at other epochs the predictions are calibrated."""
    calm = predicted(seed, 1.0)
    noisy = predicted(seed, sharpness / 3)
    columns = {
        "turning_points": dict.fromkeys(("least", "least_later", "drop"), calm.columns),
        "early_stops": dict.fromkeys(("nll", "ece", "error"), calm.columns),
        **dict.fromkeys(("noise", "svhn"), dict.fromkeys(("before", "after"), noisy.columns)),
        "shift": {
            f"severity_{number}": Columns(calm.confidence ** (1 / number), calm.right)
            for number in range(1, 6)
        },
        "mass_bins": {
            part: np.square(np.arange(1.0, 61.0)).reshape(20, 3)
            for part in ("training", "validation")
        },
        "segments": segmented(sharpness, seed),
        "class_weights": weights_of_classes(sharpness),
        "translation": translated(sharpness, seed),
        "top_bin": {"share": np.linspace(0, 1, 20), "error": np.linspace(0.1, 0.0, 20)},
    }
    return records.flat(columns[name])


def segmented(sharpness, seed):
    """Sums of 40 images of 100 pixels in 4 classes, of which the last are rare.

    The recall of the rare classes and the overconfidence grow with the sharpness.
    """
    random = np.random.default_rng(seed)
    pixels = np.array([60, 34, 3, 3])
    recall = np.array([0.9, 0.8, 0.2 * sharpness, 0.2 * sharpness])
    right = random.binomial(pixels, recall, size=(40, 4))
    confusion = np.zeros((40, 4, 4))
    confusion[:, range(4), range(4)] = right
    confusion[:, range(4), [1, 0, 0, 0]] += pixels - right
    weight = np.zeros((40, 15))
    weight[:, 12] = 100
    hit = np.zeros((40, 15))
    hit[:, 12] = right.sum(axis=1)
    columns = {"weight": weight, "confidence": (0.7 + 0.05 * sharpness) * weight, "hit": hit}
    return {
        "confusion": confusion,
        "class_counts": 1000 * pixels,
        "temperature": np.array(1.5),
        **{
            f"{phase}_{name}": sums
            for phase in ("before", "after")
            for name, sums in columns.items()
        },
    }


def translated(sharpness, seed):
    """Sums of 60 sentences of 1,000 tokens, as confident and as well translated as T = sharpness.

    BLEU is the largest, and the validation ECE the least, at the temperature nearest to it.
    """
    random = np.random.default_rng(seed)
    temperatures = np.array(translations.TEMPERATURES)
    distance = np.abs(temperatures - sharpness)
    words = np.array([20, 19, 18, 17])
    share = (0.9 - 0.1 * distance)[:, None, None] + random.uniform(-0.05, 0.05, (60, 1))
    counts = np.zeros((len(temperatures), 60, 10))
    counts[..., :4] = np.round(words * share ** np.arange(1, 5))
    counts[..., 4:8] = words
    counts[..., 8:] = 20
    weight = np.zeros((60, 15))
    weight[:, 12] = 1000
    right = random.binomial(1000, 0.8, 60)
    arrays = {
        "temperatures": temperatures,
        "validation_ece": 0.01 + 0.1 * distance,
        "temperature": np.array(sharpness),
        "temperature_by_nll": np.array(sharpness),
        "bleu": counts.astype(np.int16),
    }
    for phase, size in (("before", 0.2), ("after", 0.1)):
        hit = np.zeros((60, 15))
        hit[:, 12] = right
        arrays |= {
            f"{phase}_weight": weight,
            f"{phase}_hit": hit,
            f"{phase}_confidence": (0.8 + size * (sharpness - 1)) * weight,
            f"{phase}_nll": 600 + 100 * abs(sharpness - 1) + random.normal(size=60),
        }
    return arrays


def weights_of_classes(sharpness):
    """Weights of a large and of a rare class over ten epochs.

    With sharpness 3 the rare class gains, with 1 it loses.
    """
    epoch = np.arange(1.0, 11.0)
    rare = 0.5 + 0.02 * (sharpness - 2) * epoch
    table = np.stack([0.9 * (1 - rare), 0.1 * (1 - rare), rare], axis=1)
    counts = np.array([9000, 900, 100])
    weights = {"focal_weights": table, "recall_weights": table}
    return {"epoch": epoch, "class_counts": counts} | weights


def record(folder, training, seed, sharpness, rows, **about):
    """Write the record of a run, with these rows of its log."""
    values, arrays = predicted(seed, sharpness), {}
    for part in records.PARTS:
        if training.keep == "columns":
            columns = records.packed(values.columns)
            arrays |= {f"{part}_{key}": column for key, column in columns.items()}
        else:
            arrays |= {f"{part}_logits": values.logits, f"{part}_labels": values.labels}
    about = ABOUT | {"config": runs.config_of(training) | {"seed": seed}} | about
    for key, value in (("about", about), ("log", rows)):
        arrays[key] = np.frombuffer(json.dumps(value).encode(), np.uint8)
    records.save(records.path_of(folder, training, seed), arrays)


def fabricate(folder, tested, sharpness):
    """Write the records of all runs of an entry."""
    for name, training in tested.runs.items():
        for seed in training.of_seeds:
            record(folder, training, seed, sharpness(name), log(sharpness(name)))
            for measure in tested.measures_of(name):
                path = records.path_of(folder, training, seed, measure)
                records.save(path, arrays_of(measure, sharpness(name), seed))


def toy(name, seeds=3):
    """An entry whose trainings are of seconds, with at most so many seeds."""
    tested = scales.at(ENTRIES[name], "toy")
    # The label must tell trainings of an entry apart, which differ in keys that digits lacks.
    trainings = {
        key: dataclasses.replace(training, seeds=min(seeds, training.seeds), alias=f"toy-{key}")
        for key, training in tested.runs.items()
    }
    return dataclasses.replace(tested, runs=trainings)


def judged(folder, name, sharpness, seeds=3):
    """The record of an entry whose runs have these sharpnesses and at most so many seeds."""
    tested = toy(name, seeds)
    fabricate(folder, tested, sharpness)
    return verdicts.compute(tested, folder, "toy")


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_gives_verdicts(tmp_path, name):
    record = judged(tmp_path, name, lambda key: 1.5, seeds=2)
    assert set(record["claims"]) == set(ENTRIES[name].claims)
    for part in record["claims"].values():
        assert part["state"] in (rules.HOLDS, rules.FAILS, rules.UNDECIDED)
        for value in part["values"].values():
            assert np.isfinite(value["value"])
    path = verdicts.write(tmp_path, record)
    by_claim = dict.fromkeys(ENTRIES[name].claims, toy(name, seeds=2))
    assert verdicts.read(tmp_path, by_claim).keys() == record["claims"].keys()
    assert path.stat().st_size < 50_000


# Cross-entropy is overconfident, all others nearly calibrated: what the papers find.
AS_PUBLISHED = {
    "mukhoti_focal": [
        "mukhoti-focal-better-calibrated-than-ce",
        "mukhoti-focal-unsure-where-wrong",
    ],
    "mukhoti_losses": [
        "mukhoti-ci-significant",
        "mukhoti-s99-lower-before-ts",
        "mukhoti-temperature-order-own",
    ],
    "mukhoti_smoothing": ["mukhoti-ls-favourable"],
    "adafocal_newsgroups_cnn": ["adafocal-newsgroups-cnn"],
    "adafocal_calibration": ["adafocal-beats-ce-flsd-cifar10", "adafocal-error-not-worse"],
    "mukhoti_overfitting": [
        "mukhoti-nll-rises-after-lr-drop",
        "mukhoti-nll-overfits-on-wrong",
        "mukhoti-ece-rises-with-nll-overfit",
        "mukhoti-entropy-falls-right-and-wrong",
    ],
    "guo_confidence": ["guo-resnet-overconfident", "guo-ts-lowers-ece"],
    "mukhoti_gammas": ["mukhoti-focal-test-nll-stays-low", "mukhoti-focal-nll-of-right-higher"],
    "mukhoti_shift": ["mukhoti-ts-fails-under-shift"],
    "mukhoti_top_bin": ["mukhoti-train-pushed-to-top-bin"],
    "adafocal_correspondence": ["adafocal-train-val-confidence-correspond"],
}


def as_published(key):
    return {"ce": 3.0, "brier": 2.0, "mmce": 2.5, "ls": 1.8, "fl1": 2.0, "fl2": 1.5}.get(key, 1.02)


@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_claims_hold_where_cross_entropy_is_overconfident(tmp_path, name):
    sharpness = as_published
    if name in ("adafocal_calibration", "adafocal_newsgroups_cnn"):

        def sharpness(key):
            return {"ce": 3.0, "flsd": 0.5, "adafocal": 1.0}.get(key, 2.0)

    check_states(tmp_path, name, sharpness, dict.fromkeys(AS_PUBLISHED[name], "holds"))


def check_states(folder, name, sharpness, states):
    """Check the verdicts of some claims of an entry."""
    claims = judged(folder, name, sharpness)["claims"]
    assert {claim: claims[claim]["state"] for claim in states} == states, claims


def test_networks_that_do_not_fit_are_judged_and_have_no_slope_beside(tmp_path, monkeypatch):
    """The training error of every fabricated run is 0."""

    def width(folder):
        record = judged(tmp_path / folder, "guo_habits", as_published)
        part = record["claims"]["guo-width-hurts-calibration"]
        fitted = record["beside"][f"{guo_trained.WIDTH}, of networks that fit"]
        return part["state"], part["values"], fitted["note"]

    fits = width("fitted")
    assert fits[2] == "one seed: over examples alone"
    monkeypatch.setattr(comparisons, "FITTED", -1.0)
    assert width("unfitted") == (*fits[:2], "fewer than two networks")


@pytest.mark.parametrize(
    ("temperature", "before", "after", "state"),
    [
        (0.5, 0.02, 0.01, "holds"),
        (1.2, 0.02, 0.01, "does not hold"),
        (0.5, -0.02, 0.01, "does not hold"),
        (0.5, 0.02, 0.0, "undecided"),
    ],
)
def test_the_claim_on_sentences_needs_underconfident_focal_losses(
    temperature, before, after, state
):
    values = {
        "T(FL-3)": Value(temperature),
        "T(FLSD-53)": Value(0.7),
        "CE2(FL-3) - CE2(CE), before": Value(before, 0.001, 20),
        "CE2(CE) - CE2(FL-3), after": Value(after, 0.001, 20),
    }
    rule = ENTRIES["mukhoti_sst"].claims["mukhoti-sst-focal"]
    assert rule.judge(values).state == state


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [(0.02, 0.01, "holds"), (0.02, -0.01, "does not hold"), (0.02, 0.0, "undecided")],
)
def test_the_claim_on_messages_is_about_both_phases(before, after, state):
    values = {
        f"CE2(CE) - CE2(FLSD-53), {phase}": Value(difference, 0.001, 20)
        for phase, difference in (("before", before), ("after", after))
    }
    rule = ENTRIES["mukhoti_newsgroups"].claims["mukhoti-newsgroups-focal"]
    assert rule.judge(values).state == state


def test_the_name_of_a_value_defines_it():
    """Two networks by hand: errors, calibration and temperatures in each phase."""
    runs = {}
    for key, sharpness in (("ce", 3.0), ("fl3", 1.2)):
        parts = [predicted(seed, sharpness) for seed in (1, 2, 3)]
        runs[key] = [records.Trained(n, part, part, [], {}, {}) for n, part in enumerate(parts)]

    def squared(runs, part):
        return np.mean([estimates.squared_error(part(run)).value for run in runs])

    ce, focal = runs["ce"], runs["fl3"]
    test, scaled = (lambda run: run.test), (lambda run: run.scaled)
    expected = {
        "CE2(CE) - CE2(FL-3)": squared(ce, test) - squared(focal, test),
        "CE2(CE) - CE2(FL-3), after": squared(ce, scaled) - squared(focal, scaled),
        "CE2(CE+TS) - CE2(FL-3)": squared(ce, scaled) - squared(focal, test),
        "error(FL-3) - error(CE)": np.mean([np.mean(a.test.right) for a in ce])
        - np.mean([np.mean(a.test.right) for a in focal]),
        "confidence - accuracy, CE": np.mean(
            [np.mean(run.test.confidence - run.test.right) for run in ce]
        ),
        "T(CE)": np.mean([run.temperature for run in ce]),
        "T(CE) by NLL": np.mean([run.temperature_by_nll for run in ce]),
    }
    for name, number in expected.items():
        np.testing.assert_allclose(compared.value(name, runs).value, number, atol=1e-12)
    margin = compared.value("CE2(CE) - CE2(FL-3), minus the margin", runs).value
    root = max(0.0, squared(focal, test)) ** 0.5
    allowed = (root + 0.005) ** 2 - root**2
    np.testing.assert_allclose(margin, expected["CE2(CE) - CE2(FL-3)"] - allowed, atol=1e-12)
    for name in ("CE3(CE) - CE3(FL-3)", "error(CE+TS) - error(FL-3)", "something"):
        with pytest.raises(LookupError, match=r"defines no value: see entries/compared\.py"):
            compared.value(name, runs)
    for name in ("error(FL-3) - error(Brier)", "error(FL-3) - error(CE), later"):
        with pytest.raises(LookupError, match=r"needs the run .*; there are ce, fl3, and before"):
            compared.value(name, runs)


def test_sentences_are_read_between_the_polar_classes():
    logits = np.log(np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.1, 0.8, 0.1]], np.float32))
    polar = text_trainings.polar(Predictions(logits, np.array([2, 0, 1])))
    np.testing.assert_allclose(polar.confidence, [0.6, 2 / 3], rtol=1e-6)
    np.testing.assert_array_equal(polar.labels, [1, 0])
    released = text_trainings.as_released(Predictions(logits, np.array([2, 0, 1])))
    np.testing.assert_allclose(released.confidence, [0.3, 0.6], rtol=1e-6)
    np.testing.assert_array_equal(released.right, [True, True])


def test_the_entry_of_minilm_takes_its_one_seed():
    draw = np.random.default_rng(0)
    predictions = Predictions(draw.normal(size=(500, 20)), draw.integers(0, 20, 500))
    run = records.Trained(1, predictions, predictions, [], {}, {})
    tested = ENTRIES["adafocal_newsgroups_bert"]
    assert {training.seeds for training in tested.runs.values()} == {1}
    values = tested.statistic({name: [run] for name in tested.runs})
    assert values["T(CE)"].value == run.temperature
    assert values["T(CE)"].deviation is None
    assert values["error(AdaFocal) - error(CE)"].value == 0


def test_the_papers_reading_of_sentences_is_that_of_the_metrics():
    draw = np.random.default_rng(0)
    predictions = Predictions(draw.normal(size=(500, 3)), draw.choice([0, 2], 500))
    run = records.Trained(1, predictions, predictions, [], {}, {})
    temperature = text_trainings.released_temperature(run)

    def expected(t):
        logits, labels = map(jnp.asarray, predictions.scaled(t))
        return float(metrics.ece(logits, labels, excluded_class=1))

    np.testing.assert_allclose(
        estimates.ece(text_trainings.released_after(run)), expected(temperature), rtol=1e-5
    )
    assert all(expected(temperature) <= expected(t) + 1e-7 for t in np.arange(1, 101) / 10)


def rare_better(key):
    """The recall loss has the better rare classes; of the focal loss their weight rises."""
    return {"focal": 2.2, "sgd": 3.0, "alpha0.5": 2.0, "alpha0.9": 3.0}.get(
        key, {"recall": 1.7, "recall_tail": 3.0}.get(key, 1.0)
    )


def test_claims_on_pixels_follow_the_sums_of_images(tmp_path):
    """Fabricated runs in which rare classes gain give the verdict 'holds'."""
    claims = judged(tmp_path / "a", "recall_rare_classes", rare_better)["claims"]
    values = next(iter(claims.values()))["values"]
    camvid = values["recall of rare classes, CamVid: recall - CE"]
    # Two of the three rarest classes gain 0.2 x 0.7.
    assert abs(camvid["value"] - 0.2 * 0.7 * 2 / 3) < 0.08
    for name, claim in (
        ("recall_optimizer", "recall-better-with-sgd-large-batch"),
        ("recall_class_weights", "recall-focal-share-of-rare-class-rises"),
        ("recall_alpha", "recall-smaller-alpha-lower-train-loss"),
    ):
        check_states(tmp_path / name, name, rare_better, {claim: "holds"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharpness", "states"),
    [
        ({"ce": 1.5, "ls": 1.1, "fl1": 1.0}, ["holds", "holds", "holds"]),
        ({"ce": 1.0, "ls": 1.1, "fl1": 1.5}, ["does not hold", "does not hold", "holds"]),
        ({"ce": 1.5, "ls": 1.2, "fl1": 1.0}, ["holds", "undecided", "holds"]),
    ],
)
def test_claims_on_translation_follow_the_sums_of_sentences(tmp_path, sharpness, states):
    record = judged(tmp_path, "mukhoti_translation", lambda key: sharpness[key], seeds=1)
    order = [f"mukhoti-translation-{end}" for end in ("ece", "temperature-one", "bleu-at-low-ece")]
    of_one_seed = [record["claims"][claim]["state"] for claim in order]
    assert of_one_seed == ["undecided", *states[1:]]
    of_three = []
    for claim in order:
        values = {k: Value.of(v) for k, v in record["claims"][claim]["values"].items()}
        rule = mukhoti_translation.ENTRY.claims[claim]
        of_three.append(rule.judge({**values, "seeds": Value(3)}).state)
    assert of_three == states
    values = record["beside"] | record["claims"][order[0]]["values"]
    nll = values["token NLL(CE) - NLL(FL-1), before"]
    exact = 0.1 * (abs(sharpness["ce"] - 1) - abs(sharpness["fl1"] - 1))
    assert nll["low"] < exact < nll["high"] or abs(nll["value"] - exact) < 1e-3
    assert record["figures"] == ["mukhoti_translation_temperature.png"]


def test_sums_of_sentences_are_those_of_their_tokens():
    tokens = predicted(0, 1.5, rows=90)
    sentences = np.repeat(np.arange(30), 3)
    sums = translations.sums_of(tokens, sentences)
    bins = estimates.squared_error(tokens)
    np.testing.assert_allclose(sums["weight"].sum(axis=0), bins.size)
    gaps = (sums["confidence"] - sums["hit"]).sum(axis=0)
    np.testing.assert_allclose(gaps, bins.total, atol=1e-4)
    np.testing.assert_allclose(sums["nll"], tokens.nll.reshape(30, 3).sum(axis=1), rtol=1e-5)


def test_the_jackknife_of_a_mean_is_its_influence():
    random = np.random.default_rng(0)
    sums = {"x": random.normal(size=30), "n": np.ones(30)}
    actual = estimates.of_images(sums, lambda total: total["x"] / total["n"])
    np.testing.assert_allclose(actual.value, sums["x"].mean())
    np.testing.assert_allclose(actual.influence, sums["x"] - sums["x"].mean(), rtol=1e-9)


def test_the_squared_error_of_images_has_no_bias():
    """Calibrated images, of which each is right or wrong as a whole, average to 0."""
    random = np.random.default_rng(0)
    values = []
    for _ in range(400):
        hit = 10.0 * (random.random((20, 3)) < 0.8)
        weight = np.full((20, 3), 10.0)
        parts = estimates.squared_error_of_images(weight, 0.8 * weight, hit)
        values.append(estimates.of_images(*parts).value)
    assert abs(np.mean(values)) < 4 * np.std(values) / 20
    assert np.std(values) > 1e-3


# The others are overconfident, and cross-entropy is calibrated.
REVERSED = {
    "mukhoti_focal": [
        "mukhoti-focal-better-calibrated-than-ce",
        "mukhoti-focal-unsure-where-wrong",
    ],
    "mukhoti_losses": ["mukhoti-flsd-outperforms-own", "mukhoti-s99-lower-before-ts"],
    "mukhoti_smoothing": ["mukhoti-ls-favourable"],
    "bsce_gra_calibration": ["bsce-gra-beats-ce-own", "bsce-gra-no-need-of-ts"],
    "adafocal_newsgroups_cnn": ["adafocal-newsgroups-cnn"],
    "adafocal_calibration": ["adafocal-beats-ce-flsd-cifar10"],
    "mukhoti_gammas": ["mukhoti-focal-test-nll-stays-low", "mukhoti-weight-norm-reversal"],
}


@pytest.mark.parametrize("name", REVERSED)
def test_claims_do_not_hold_where_the_others_are_overconfident(tmp_path, name):
    states = dict.fromkeys(REVERSED[name], "does not hold")
    check_states(tmp_path, name, lambda key: 1.0 if key == "ce" else 3.0, states)


def test_measures_are_those_of_the_catalogue():
    for tested in ENTRIES.values():
        for name in tested.measures:
            assert callable(measures.named(name))
    with pytest.raises(LookupError, match=r"no measure 'nois'; there are turning_points"):
        measures.named("nois")


def test_first_drop_and_least():
    rows = [{"learning_rate": rate, "nll": abs(n - 3)} for n, rate in enumerate(RATES)]
    assert measures.first_drop(rows) is rows[9]
    assert measures.least(rows, "nll") is rows[3]
    constant = [{"learning_rate": 0.1} for _ in range(5)]
    assert measures.first_drop(constant) is constant[2]


def test_committed_records_are_of_the_configs_that_stand():
    """A changed config needs its runs trained again, and a record that nothing reads is dead."""
    of_entries = [training for tested in ENTRIES.values() for training in tested.runs.values()]
    of_tables = [training for table in trained_tables.TABLES for training in table.rows.values()]
    again = repetitions.COMPARED.values()
    folder, read = ROOT / "experiments" / "results" / "papers", set()
    for training in {*of_entries, *of_tables, *again}:
        for seed in training.of_seeds:
            path = records.path_of(folder, training, seed)
            if path.is_file():
                recorded = records.about(path)["config"]
                wanted = runs.config_of(training)
                assert not train.differences(recorded, wanted, free=runs.free(training)), path
                read |= {path, *path.parent.glob(f"{seed}_*.npz")}
    assert read
    assert set(folder.glob("runs/*/*/*.npz")) == read
