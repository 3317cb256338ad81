"""The law of temperatures: heads, predictions, points, and the page against the records."""

import json

import numpy as np
import pytest
import scipy.special
import scipy.stats
from PIL import Image

from calib_jax import calibrators, inference, metrics
from experiments.map import heads, law, law_data, networks, points, report, settings
from experiments.map.points import Point
from tests.data import tiny
from tests.experiments.processes import finish

NAN = float("nan")


def drawn(rows, seed, *, t=2.0, classes=5):
    """Logits that are too large by t, with labels from the smaller ones."""
    random = np.random.default_rng(seed)
    z = 2 * random.normal(size=(rows, classes))
    labels = (z + random.gumbel(size=z.shape)).argmax(axis=1)
    return (t * z).astype(np.float32), labels


@pytest.fixture(scope="module")
def arrays():
    """Vectors in three classes that overlap."""
    random = np.random.default_rng(0)
    found = {}
    for part, rows in (("train", 256), ("validation", 200), ("test", 300)):
        labels = random.integers(0, 3, rows)
        found[part] = (random.normal(size=(rows, 6)) + 1.5 * np.eye(6)[labels]).astype(np.float32)
        found[f"{part}_labels"] = labels
    return found


# ------------------------------------------------------------------------------------------ heads


def test_heads_learn_and_weight_decay_lowers_their_temperature(arrays):
    logits = heads.train(arrays, "cross_entropy", np.zeros(6), epochs=15, seeds=(0, 1))
    assert logits["test"].shape == (6, 2, 300, 3)
    found = heads.measured(logits, arrays)
    assert np.max(found["error"]) < 0.4
    t = np.mean(found["temperature"], axis=1)
    assert t[0] > t[-1]
    other = heads.train(arrays, "cross_entropy", np.zeros(6), epochs=15, seeds=(1,))
    np.testing.assert_allclose(other["test"][:, 0], logits["test"][:, 1], atol=1e-4)


def test_matched_focal_is_focal_or_inverse_focal_loss_of_its_gamma(arrays, monkeypatch):
    monkeypatch.setitem(heads.LOSSES, "inverse", ("inverse_focal", {"gamma": 1.0}))
    gammas = np.array([3.0, 3, 3, -1, -1, -1])
    matched, focal, inverse = (
        heads.train(arrays, loss, gammas, epochs=2, seeds=(0,))["test"]
        for loss in ("matched", "focal_3", "inverse")
    )
    np.testing.assert_allclose(matched, [*focal[:3], *inverse[3:]], atol=1e-4)


def test_adafocal_follows_the_validation_set(arrays):
    other = arrays | {"validation_labels": np.roll(arrays["validation_labels"], 1)}
    first, second = (
        heads.train(a, "adafocal", np.zeros(6), epochs=2, seeds=(0,))["test"]
        for a in (arrays, other)
    )
    assert not np.allclose(first, second)


def test_measured_values_are_those_of_the_library():
    validation, test = drawn(400, 1), drawn(500, 2)
    found = heads.measured(
        {"validation": validation[0][None], "test": test[0][None]},
        {"validation_labels": validation[1], "test_labels": test[1]},
    )
    fitted = float(calibrators.temperature.fit(*validation).temperature)
    p = scipy.special.softmax(test[0].astype(float), axis=1)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == test[1]
    wanted = {
        "temperature": fitted,
        "error": float(metrics.error(*test)),
        "gap": confidence.mean() - right.mean(),
        "nll": float(metrics.nll(*test)),
        "nll_after": float(metrics.nll(test[0] / fitted, test[1])),
        "ce2": inference.ce2(confidence, right).value,
    }
    for name, value in wanted.items():
        assert found[name][0] == pytest.approx(value, rel=2e-3, abs=1e-5), name
    u = scipy.stats.mannwhitneyu(confidence[right], confidence[~right])
    assert found["auroc"][0] == pytest.approx(u.statistic / (right.sum() * (~right).sum()))


def test_predictions_are_those_of_the_library_and_none_at_chance():
    z, y = drawn(600, 3)
    found = heads.predicted(np.stack([z, -z]), y, "focal_3")
    wanted = inference.predict_loss(z, y, "focal", gamma=3.0)
    assert found["temperature"][0] == pytest.approx(wanted.temperature.value, rel=1e-4)
    assert found["gap"][0] == pytest.approx(wanted.gap.value, abs=1e-4)
    assert np.isnan(found["temperature"][1])
    few = heads.predicted(z[None], y, "focal_3", rows=300)
    assert few["temperature"][0] == pytest.approx(found["temperature"][0], rel=0.1)


# ------------------------------------------------------------------------------------------ steps


def test_a_loss_is_trained_once_and_after_its_predictions_alone(tmp_path, arrays, monkeypatch):
    np.savez(tmp_path / "sst2.npz", **arrays)
    frozen = tmp_path / "frozen.json"
    monkeypatch.setattr(law, "FROZEN", frozen)
    monkeypatch.setattr(law, "PREDICTED", ("focal_3", "bsce_gra"))  # all take seconds
    logits = heads.train(arrays, "cross_entropy", np.zeros(6), epochs=2)
    np.savez(tmp_path / "sst2-cross_entropy.npz", **logits)
    values = {"values": heads.measured(logits, arrays)}
    (tmp_path / "sst2-cross_entropy.json").write_text(json.dumps(values))
    law.freeze(tmp_path, ["sst2", "sst5"], tmp_path)
    found = settings.read(frozen)
    assert list(found) == ["sst2"]
    t = np.array(found["sst2"]["predicted"]["focal_3"]["temperature"])
    assert t.shape == (6, 3)
    assert np.all(t < np.array(values["values"]["temperature"]))
    settings.write(frozen, {"sst2": "as it was"})
    law.freeze(tmp_path, ["sst2"], tmp_path)  # what is frozen stays
    assert settings.read(frozen) == {"sst2": "as it was"}


def test_a_matched_gamma_is_negative_below_a_temperature_of_one():
    (over, y), (under, _) = drawn(400, 4, t=1.5), drawn(400, 4, t=0.8)
    (above, t), (below, other) = law.matched(np.stack([over[None], under[None]]), y)
    assert above > 0 > below
    assert [t, other] == pytest.approx([1, 1], abs=0.01)


def test_a_record_states_what_was_trained(tmp_path, arrays):
    path = law.path_of(tmp_path, "sst2", "cross_entropy", "epoch")
    assert path.name == "sst2-cross_entropy-epoch.json"
    law.record(arrays, path, "cross_entropy", "epoch", np.zeros(6))
    found = json.loads(path.read_text())
    assert (found["set"], found["loss"], found["variant"]) == ("sst2", "cross_entropy", "epoch")
    assert np.shape(found["predicted"]["focal_3"]["temperature"]) == (6, 3)
    assert "matched" not in found  # gamma of one epoch is used nowhere
    with np.load(path.with_suffix(".npz")) as logits:
        again = heads.measured(dict(logits), arrays)
    assert again == found["values"]


# ------------------------------------------------------------------------------------------ points


def point(base, predicted, measured, **more):
    given = {"group": "a", "loss": "focal_3", "classes": 10} | more
    return Point("map", given["group"], "", given["classes"], given["loss"], base, predicted,
                 measured, more.get("dead", False))  # fmt: skip


def test_agreement_has_bias_scatter_slope_and_an_interval_over_groups():
    random = np.random.default_rng(0)
    base = random.normal(size=60)
    noise = 0.05 * random.normal(size=60)
    of = [
        point(b, b - 0.5, 2 * (b - 0.5) + 0.1 + e, group=str(k % 3))
        for k, (b, e) in enumerate(zip(base, noise, strict=True))
    ]
    of.append(point(1.0, NAN, 1.0))
    found = points.agreement(of)
    ratio = np.array([p.measured - p.predicted for p in of[:-1]])
    assert (found.places, found.groups) == (60, 3)
    assert found.bias[0] == pytest.approx(ratio.mean())
    low, high = scipy.stats.ttest_1samp(ratio, 0).confidence_interval(0.9)
    assert found.bias[1:] == pytest.approx((low, high))
    assert found.slope == pytest.approx(2, abs=0.05)
    assert found.rms == pytest.approx(np.sqrt(np.mean(ratio**2)))
    means = [np.mean(ratio[k::3]) for k in range(3)]
    low, high = scipy.stats.ttest_1samp(means, 0).confidence_interval(0.9)
    assert points.agreement(of, over_groups=True).bias[1:] == pytest.approx((low, high))


def values(t, error=0.3, **more):
    """Values of six weight decays and three seeds."""
    return {"values": {"temperature": np.full((6, 3), t).tolist(),
                       "error": np.full((6, 3), error).tolist(), **more}}  # fmt: skip


def test_points_of_sets_are_means_over_seeds_and_mark_the_dead():
    predicted = {"focal_3": {"temperature": np.full((6, 3), 1.5).tolist()}}
    frozen = {"x": {"classes": 2, "predicted": predicted}}
    records = {"x cross_entropy": values(2.0), "x focal_3": values(1.2)}
    records["x focal_3"]["values"]["temperature"][0] = [0.6, 1.2, 2.4]
    found = points.of_sets(frozen, records)
    assert len(found) == 6
    assert np.exp([(p.base, p.predicted, p.measured) for p in found]) == pytest.approx(
        np.tile([2.0, 1.5, 1.2], (6, 1))
    )
    assert not any(p.dead for p in found)
    dead = values(2.0, error=0.46)
    found = points.of_sets(frozen, records | {"x cross_entropy": dead})
    assert all(p.dead for p in found)
    # The rules of focal loss were fixed for the error of cross-entropy; others may not be dead.
    records = {"x cross_entropy": values(2.0), "x focal_3": dead, "x brier": dead}
    assert {p.loss for p in points.of_sets(frozen, records) if p.dead} == {"brier"}


# ------------------------------------------------------------------------------------------ report


def test_matched_focal_is_compared_by_root_ce2_of_live_places():
    def of(ce2, after=0.0001):
        column = np.full((6, 3), ce2).tolist()
        rest = dict.fromkeys(("nll", "nll_after", "auroc"), column)
        return values(1.0, ce2=column, ce2_after=np.full((6, 3), after).tolist(), **rest)

    # A set of one's own has no record yet.
    frozen = {name: {"classes": 10} for name in (*report.FIRST, "mine")}
    records = {}
    for k, name in enumerate(report.FIRST):
        records[f"{name} cross_entropy"] = of(0.04)
        records[f"{name} matched"] = of((0.02 + 0.001 * k) ** 2)
        records[f"{name} focal_3"] = of(0.01)
        records[f"{name} adafocal"] = of(0.0001)
    lines = {line.split(" | ")[0][2:]: line for line in report.method(frozen, records).split("\n")}
    assert "-7.8 [-8.0, -7.6]; holds" in lines["FL-3"]
    assert "1.2 [1.0, 1.4]; does not hold" in lines["AdaFocal"]
    assert "1.2 [1.0, 1.4] |" in lines["cross-entropy with T"]
    # The rule counts a place whose matched focal is dead, so the table names their number.
    records["cifar2 matched"]["values"]["error"] = np.full((6, 3), 0.85).tolist()
    # A set whose cross-entropy is dead is in no comparison.
    records["sst2 cross_entropy"]["values"]["error"] = np.full((6, 3), 0.85).tolist()
    assert "| matched focal | 4; 6 |" in report.method(frozen, records)


def test_the_page_has_the_tables_of_the_records_and_every_setting_a_record():
    page = report.PAGE.read_text()
    assert report.filled(page, report.tables()) == page
    with pytest.raises(ValueError, match="one place for the table law"):
        report.filled("", {"law": ""})
    assert set(settings.read(settings.RECORDS)) == {s.name for s in settings.settings()}


# ------------------------------------------------------------------------------- networks and map


def test_networks_are_measured_from_their_logits():
    logits = {}
    for loss, t in (("cross_entropy", 2.0), ("focal_3", 1.0)):
        seeds = [drawn(500, seed, t=t) for seed in (1, 1)]
        z, y = np.stack([z for z, _ in seeds]), seeds[0][1]
        logits[loss] = {"validation_logits": z, "validation_labels": y,
                        "test_logits": z, "test_labels": y}  # fmt: skip
    found = networks.measured(logits)
    t = {loss: of["measured"] for loss, of in found["losses"].items()}
    assert np.divide(t["cross_entropy"], t["focal_3"]) == pytest.approx(2.0, rel=1e-3)
    wanted = inference.predict_loss(*drawn(500, 1), "focal", gamma=3.0).temperature.value
    assert found["losses"]["focal_3"]["predicted"] == pytest.approx([wanted] * 2, rel=1e-4)
    (one,) = points.of_networks({"x": found})
    assert np.exp(one.measured) == pytest.approx(t["focal_3"][0], rel=1e-4)


def test_a_condition_changes_one_option_and_has_five_seeds():
    base = settings.Setting("newsgroups", "focal_3", 5e-4)
    configs = {settings.config_of(s).to_json() for s in settings.settings()}
    assert len(configs) == 414
    for condition, (section, changes) in settings.CONDITIONS.items():
        setting = base._replace(condition=condition)
        config = settings.config_of(setting)
        assert config.num_seeds == len(setting.seeds) == 5
        assert config.optimizer.weight_decay == 5e-4
        for name, value in changes.items():
            assert config[section]["options"][name] == value


def test_the_map_trains_what_has_no_record(tmp_path, monkeypatch):
    tiny.vectors(tmp_path, "banking77", encoder=settings.ENCODER)
    out = tmp_path / "new" / "records.json"
    wanted = [s for s in settings.settings() if s.texts == "banking77"]
    wanted = [s for s in wanted if s.loss == "cross_entropy"]
    missing = next(s for s in wanted if s.condition == "width64")
    settings.write(out, {s.name: {} for s in wanted if s != missing})
    flags = (f"--vectors={tmp_path}", f"--workdir={tmp_path}/work", f"--out={out}")
    output = finish("map.run", *flags, "--texts=banking77", "--losses=cross_entropy")
    assert "17 of 18 settings have a record." in output
    record = settings.read(out)[missing.name]
    assert record["rows"] == {"validation": 12, "test": 20}
    assert len(record["values"]["temperature"]) == 5
    assert set(record["predicted"]) == set(heads.PREDICTED) - {"cross_entropy", "dual_focal"}
    output = finish("map.run", *flags, "--texts=digits", code=2)
    assert "--texts must be among banking77, clinc150, newsgroups, got digits." in output
    of_law = ("map.law", f"--data={tmp_path}", f"--out={tmp_path}")
    output = finish(*of_law, code=2)
    assert "has no sst2.npz or another of --sets: experiments.map.law_data writes them" in output
    np.savez(tmp_path / "mine.npz")
    assert "mine: no predictions are frozen" in finish(*of_law, "--sets=mine", code=2)


def test_the_first_images_of_tiny_imagenet_hold_all_classes(tmp_path):
    for label in range(4):
        folder = tmp_path / f"n{label}" / "images"
        folder.mkdir(parents=True)
        image = Image.fromarray(np.full((4, 4, 3), 60 * label, np.uint8))
        for number in range(85):
            image.save(folder / f"{number}.JPEG")
    (tmp_path / ".DS_Store").write_text("no class")
    images, labels = law_data.tiny_images(tmp_path)
    assert {part: len(of) for part, of in labels.items()} == {
        **{"train": 200, "validation": 40, "test": 100}
    }
    for part, of in labels.items():
        np.testing.assert_array_equal(np.round(images[part].mean((1, 2, 3)) / 60), of)
        assert set(of[: len(of) // 4]) == {0, 1, 2, 3}
