"""The map: its measures against the library, its settings, and its records."""

import json

import numpy as np
import pytest
import scipy.special

from calib_jax import calibrators, inference, metrics, train
from calib_jax.core.files import reading
from experiments.map import measures, records, settings, trainings
from experiments.papers.estimates import Predictions
from tests.data import tiny_intents
from tests.experiments.processes import finish


def drawn(rows, seed, *, sharpness=1.7, classes=6):
    """Logits that are too large, with labels from the smaller ones."""
    generator = np.random.default_rng(seed)
    logits = 3 * generator.standard_normal((rows, classes))
    p = scipy.special.softmax(logits / sharpness, axis=1)
    labels = np.array([generator.choice(classes, p=row) for row in p])
    return Predictions(logits.astype(np.float32), labels)


@pytest.fixture(scope="module")
def parts():
    outside = Predictions(drawn(100, 3).logits / 2, np.zeros(100, int))
    return drawn(500, 1), drawn(700, 2), outside


@pytest.fixture(scope="module")
def measured(parts):
    return measures.measure([parts, parts])


def test_the_values_are_those_of_the_library(parts, measured):
    validation, test, outside = parts
    values = {name: column[0] for name, column in measured["values"].items()}
    fitted = calibrators.temperature.fit(validation.logits, validation.labels)
    assert values["temperature"] == pytest.approx(float(fitted.temperature), rel=2e-3)
    assert values["error"] == pytest.approx(float(metrics.error(test.logits, test.labels)))
    for when, scale in (("before", 1.0), ("after", values["temperature"])):
        logits = test.logits / scale
        squared = inference.debiased_squared_error(logits, test.labels).value
        both = metrics.in_and_out(logits, outside.logits / scale)
        wanted = {
            "nll": metrics.nll(logits, test.labels),
            "ece": metrics.ece(logits, test.labels),
            "ce2": squared,
            "auroc": metrics.ood_auroc(*both),
        }
        for name, value in wanted.items():
            assert values[f"{name}_{when}"] == pytest.approx(float(value), abs=2e-6), name
    # The library leaves out each example in turn, which costs about half a unit in n.
    refinement = float(metrics.refinement_nll(test.logits, test.labels))
    assert values["refinement"] == pytest.approx(refinement, abs=2 / len(test.labels))
    assert values["refinement"] <= values["nll_after"]


def test_replicates_leave_out_one_fold(parts, measured):
    validation, test, outside = parts
    fold = 3
    kept = np.arange(len(test.labels)) % measures.FOLDS != fold
    logits = test.logits[kept]
    outer = outside.logits[np.arange(100) % measures.FOLDS != fold]
    replicate = {name: column[fold] for name, column in measured["without_test"].items()}
    ece = float(metrics.ece(logits, test.labels[kept]))
    assert replicate["ece_before"] == pytest.approx(ece, abs=1e-6)
    auroc = float(metrics.ood_auroc(*metrics.in_and_out(logits, outer)))
    assert replicate["auroc_before"] == pytest.approx(auroc, abs=1e-6)
    scale = measured["values"]["temperature"][0]  # of all validation rows
    nll = float(metrics.nll(logits / scale, test.labels[kept]))
    assert replicate["nll_after"] == pytest.approx(nll, abs=1e-6)
    # Without a fold of validation rows the temperature changes, and the test rows stay.
    kept = np.arange(len(validation.labels)) % measures.FOLDS != fold
    other = calibrators.temperature.fit(validation.logits[kept], validation.labels[kept])
    replicate = {name: column[fold] for name, column in measured["without_validation"].items()}
    scale = float(other.temperature)
    assert replicate["temperature"] == pytest.approx(scale, rel=2e-3)
    nll = float(metrics.nll(test.logits / scale, test.labels))
    assert replicate["nll_after"] == pytest.approx(nll, abs=1e-5)


def test_every_setting_has_its_own_config():
    best = ("brier", "mdca")
    wanted = [of for part in settings.PARTS for of in settings.settings(part, best=best)]
    assert len(wanted) == len({of.name for of in wanted}) == 216 + 6 * 4 * 6 + 9 * 6
    configs = [str(records.config_key(setting)) for setting in wanted]
    assert len(set(configs)) == len(wanted)
    config = settings.config_of(settings.Setting("clinc150", "focal_1", 2e-3))
    assert config.loss.options.gamma == 1.0
    assert config.loss.reduction == "mean"
    assert config.optimizer.weight_decay == 2e-3
    assert (config.data.options.texts, config.data.options.encoder) == (
        "clinc150",
        settings.ENCODER,
    )


def test_a_condition_changes_one_option_and_has_five_seeds():
    base = settings.Setting("newsgroups", "focal_3", 5e-4)
    without = records.config_key(base)
    for condition, (section, changes) in settings.CONDITIONS.items():
        setting = base._replace(condition=condition)
        config = records.config_key(setting)
        assert config.pop("num_seeds") == len(setting.seeds) == 5
        for name, value in changes.items():
            value = list(value) if isinstance(value, tuple) else value
            assert config[section]["options"].pop(name) == value
        for of in (config, rest := json.loads(json.dumps(without))):
            for name in changes:
                of[section]["options"].pop(name, None)
        rest.pop("num_seeds")
        assert config == rest


def record_of(setting, measured):
    count = len(setting.seeds)
    columns = {
        "values": {name: (column * 5)[:count] for name, column in measured["values"].items()},
        **{kind: measured[kind] for kind in ("without_test", "without_validation")},
    }
    return {"seeds": list(setting.seeds), **columns, "config": records.config_key(setting)}


def test_a_record_of_other_runs_is_refused(tmp_path, measured):
    setting = settings.Setting("banking77", "brier", 5e-4)
    assert records.read(tmp_path, setting) is None
    record = record_of(setting, measured)
    records.write(tmp_path, setting, record)
    found = records.read(tmp_path, setting)
    assert found["values"]["error"] == pytest.approx(record["values"]["error"], rel=1e-5)
    other = setting._replace(weight_decay=2e-3)
    records.write(tmp_path, other, record)
    with pytest.raises(reading.Unreadable, match=r"brier-0.002.json .*another config: optimizer"):
        records.read(tmp_path, other)
    records.write(tmp_path, setting, record | {"seeds": [1, 2]})
    with pytest.raises(reading.Unreadable, match=r"its seeds are \[1, 2\], and not \[1, 2, 3"):
        records.read(tmp_path, setting)
    short = {name: column[:9] for name, column in record["values"].items()}
    records.write(tmp_path, setting, record | {"values": short})
    with pytest.raises(reading.Unreadable, match="values of error are not 10 finite numbers"):
        records.read(tmp_path, setting)


def test_a_new_config_key_that_is_off_keeps_the_records(tmp_path, measured, monkeypatch):
    setting = settings.Setting("banking77", "brier", 5e-4)
    records.write(tmp_path, setting, record_of(setting, measured))

    def with_keys(**keys):
        def config_of(setting):
            config = settings.config_of(setting)
            with config.unlocked():
                config.update(keys)
            return config

        monkeypatch.setattr(records, "config_of", config_of)

    for value in (0, 0.0, False, "", (), {"decay": 0.0, "start": ""}):
        with_keys(new=value)
        assert records.read(tmp_path, setting) is not None, value
    with_keys(optimizer={"decoupled": False})
    assert records.read(tmp_path, setting) is not None
    with_keys(optimizer={"decoupled": True})
    with pytest.raises(reading.Unreadable, match=r"optimizer.decoupled: nothing before, True now"):
        records.read(tmp_path, setting)
    with_keys(new={"decay": 0.9})
    with pytest.raises(reading.Unreadable, match=r"new.decay: nothing before, 0.9 now"):
        records.read(tmp_path, setting)
    # A key that the record has, and today's config lacks, is another config.
    record = record_of(setting, measured)
    record["config"]["optimizer"]["gone"] = 0
    records.write(tmp_path, setting, record)
    with pytest.raises(reading.Unreadable, match=r"optimizer.gone: 0 before, nothing now"):
        records.read(tmp_path, setting)


def test_the_committed_records_are_read():
    names = {path.stem for path in records.FOLDER.glob("*.json")} - {"law-frozen", "law-records"}
    best = [loss for loss in settings.LOSSES if loss not in (settings.BASELINE, settings.FOCAL)]
    for part in settings.PARTS:
        wanted = settings.settings(part, best=best)
        names -= {setting.name for setting in records.read_all(records.FOLDER, wanted)}
    assert not names


def test_one_process_trains_a_setting_and_another_keeps_its_record(tmp_path, measured, monkeypatch):
    setting = next(iter(settings.settings()))
    record, folders = record_of(setting, measured), (tmp_path / "work", tmp_path / "records")

    def trained(setting, vectors, folder):
        (folder / "seed_1").mkdir()
        # Its checkpoints are read until the record is written, and removed then.
        with pytest.raises(train.InUse, match=f"{setting.name} is in use by process"):
            trainings.record_setting(setting, "", *folders)
        return record, 0

    monkeypatch.setattr(trainings, "train_setting", trained)
    assert trainings.record_setting(setting, "", *folders) == (record, 0)
    assert not list(folders[0].iterdir())
    monkeypatch.setattr(trainings, "train_setting", None)
    assert trainings.record_setting(setting, "", *folders)[0]["seeds"] == record["seeds"]
    assert not list(folders[0].iterdir())


@pytest.mark.slow
def test_a_killed_command_goes_on_with_the_missing_settings(tmp_path, measured):
    tiny_intents.vectors(tmp_path, "banking77", encoder=settings.ENCODER)
    wanted = [setting for setting in settings.settings() if setting.texts == "banking77"]
    for setting in wanted[1:]:
        records.write(tmp_path / "records", setting, record_of(setting, measured))
    killed = tmp_path / "work" / wanted[0].name / "seed_1"  # a run that has no checkpoint yet
    killed.mkdir(parents=True)
    flags = (f"--vectors={tmp_path}", f"--workdir={tmp_path}/work", f"--records={tmp_path}/records")
    output = finish("map.run", *flags, "--texts=banking77")
    assert "71 of 72 settings have a record." in output
    first = records.read(tmp_path / "records", wanted[0])
    assert first["rows"] == {"validation": 12, "test": 20}
    assert not killed.exists()
    (tmp_path / "records" / f"{wanted[0].name}.json").unlink()
    finish("map.run", *flags, "--texts=banking77")
    assert records.read(tmp_path / "records", wanted[0])["values"] == first["values"]
    output = finish("map.run", *flags, "--texts=digits", code=2)
    assert "--texts must be among banking77, clinc150, newsgroups, got digits." in output
    # The map chooses the two best losses; without CLINC150 only two losses are trained.
    conditions = [of for of in settings.settings("conditions") if of.texts == "banking77"]
    width = settings.Setting("banking77", "focal_3", 5e-4, "width64")
    for setting in set(conditions) - {width}:
        records.write(tmp_path / "records", setting, record_of(setting, measured))
    output = finish("map.run", *flags, "--texts=banking77", "--part=conditions")
    assert "Two more losses are chosen once the map has all records of banking77 and" in output
    assert "23 of 24 settings have a record." in output
    assert len(records.read(tmp_path / "records", width)["values"]["error"]) == 5
