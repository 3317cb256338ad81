"""Checkpoints of a run: the best one, its predictions, and as weights to begin with."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from calib_jax.core.files import reading
from experiments.evaluation import best_checkpoints, evaluation_record, finished
from experiments.evaluation.evaluation_record import Evaluated
from experiments.reports import pages
from experiments.running import initial

COUNT = 1000  # the interval of the best error, .100, ends at .120
DIRECTIONS = {"error": "min", "nll": "min", "ece": "min"}


def log(*columns, names=("error", "nll", "ece")):
    """Return the rows of a log, an epoch of ten steps for each tuple of values."""
    keys = [f"validation_{name}" for name in names]
    return [
        {"step": 10 * k, "epoch": k, **dict(zip(keys, row, strict=True))}
        for k, row in enumerate(columns, start=1)
    ]


def best_of(rows, directions):
    """Return the best step, epoch and value by each metric."""
    best = {}
    for name, direction in directions.items():
        key = f"validation_{name}"
        row = (min if direction == "min" else max)(rows, key=lambda row: row[key])
        best[name] = {"step": row["step"], "epoch": row["epoch"], "value": row[key]}
    return best


AT_CHANCE_FIRST = log((0.9, 2.3, 0.02), (0.11, 0.4, 0.10), (0.10, 0.35, 0.12), (0.115, 0.5, 0.09))


def described(rows, directions=None):
    return best_checkpoints.describe(rows, best_of(rows, directions or DIRECTIONS), COUNT)


def test_a_network_at_chance_is_not_recommended_for_its_ece():
    lines = described(AT_CHANCE_FIRST)
    assert lines[0] == (
        "The best nll is 0.3500, of epoch 3, where the error is 0.1000; evaluate it with"
        " --checkpoint=best_nll."
    )
    (ece,) = [line for line in lines if line.startswith("The best ece")]
    assert "where the error is 0.9000" in ece
    assert "The best error, 0.1000 of epoch 3, is lower by more than noise." in ece
    assert "best_ece" not in ece


def test_a_checkpoint_that_is_asked_for_has_its_error_beside():
    assert best_checkpoints.remark(AT_CHANCE_FIRST, "best_ece", 10, COUNT) == (
        "best_ece is of epoch 1, with a validation error of 0.9000; the best error is 0.1000 of"
        " epoch 3, lower by more than noise: choose by the NLL (best_nll) or by refinement_nll,"
        " unless you want this epoch."
    )
    within = best_checkpoints.remark(AT_CHANCE_FIRST, "best_ece", 40, COUNT)
    assert "error of 0.1150" in within
    assert within.endswith("within noise.")
    assert "best_error" in best_checkpoints.remark(AT_CHANCE_FIRST, "best_nll", 10, COUNT)
    for name, step in (("latest", 40), ("best_error", 30), ("best_nll", 30), ("best_ece", 77)):
        assert best_checkpoints.remark(AT_CHANCE_FIRST, name, step, COUNT) == ""
    unknown = best_checkpoints.remark(AT_CHANCE_FIRST, "best_ece", 10)
    assert re.search("0.9000; .* 0.1000 of epoch 3[.]$", unknown)


PREDICTED = train.Predicted(np.eye(3, dtype=np.float32), np.arange(3), None)
LATEST, BEST = Evaluated("latest", 4), Evaluated("best_nll", 2)
MINE = "predictions_my_ensemble.npz"


def evaluate(folder, weights, *parts):
    """As the binaries do."""
    evaluation_record.begin(folder, weights)
    for part in parts:
        evaluation_record.keep(folder, part, PREDICTED, weights)
    evaluation_record.write(folder, weights, parts)


@pytest.fixture
def folder(tmp_path):
    """A run of a sweep that is evaluated at its last step, and a file of the user."""
    evaluate(tmp_path, LATEST, "validation", "test", "training")
    result = {"config": {}, "asked": "", "checkpoint": "latest", "step": 4}
    (tmp_path / evaluation_record.OF_SWEEP).write_text(json.dumps(result))
    (tmp_path / MINE).write_text("mine")
    return tmp_path


def names(folder):
    return {path.name for path in folder.iterdir()} - {evaluation_record.FILE, MINE}


def test_only_listed_files_of_other_weights_are_removed_and_after_the_new_ones(folder):
    before = names(folder)
    evaluation_record.begin(folder, LATEST)
    assert names(folder) == before
    evaluation_record.begin(folder, BEST)
    assert names(folder) == before - {"result.json"}
    evaluate(folder, BEST, "validation", "test")
    assert names(folder) == {"predictions_validation.npz", "predictions_test.npz"}
    assert (folder / MINE).read_text() == "mine"


def test_only_reports_that_the_record_lists_are_removed_or_replaced(folder):
    """A user's own report.md and its pictures stay."""
    place = folder / "report"

    def save(where):
        names = ["report.md", "ece.png"]
        for name in names:
            (where / name).write_text("ours")
        return names

    place.mkdir()
    (place / "report.md").write_text("![mine](mine.png)\n")
    (place / "mine.png").write_text("mine")
    evaluation_record.begin(folder, BEST)
    with pytest.raises(FileExistsError, match=r"report\.md is a file of yours: move it"):
        pages.replace(place, save)
    assert (place / "report.md").read_text() == "![mine](mine.png)\n"
    (place / "report.md").unlink()
    evaluate(folder, BEST, "validation", "test")
    for _ in range(2):
        assert pages.replace(place, save) == ["report.md", "ece.png"]
    assert {path.name for path in folder.iterdir() if path.name.startswith(".")} == set()
    evaluation_record.begin(folder, BEST)
    assert (place / "ece.png").exists()
    evaluation_record.begin(folder, LATEST)
    assert [path.name for path in place.iterdir()] == ["mine.png"]


@pytest.mark.parametrize(
    "name", ["../mine.npz", "/mine.npz", "report.md", "predictions_a/b.npz", 3]
)
def test_a_record_removes_nothing_but_predictions_of_its_folder(folder, name):
    path = folder / "run"
    path.mkdir()
    evaluate(path, LATEST, "test")
    record = json.loads((path / evaluation_record.FILE).read_text()) | {"files": [name]}
    (path / evaluation_record.FILE).write_text(json.dumps(record))
    target = path / str(name).lstrip("/")
    target.parent.mkdir(exist_ok=True)
    target.write_text("mine")
    evaluate(path, BEST, "test")
    assert target.exists()


@pytest.mark.parametrize("killed_after", ["validation", "test"])
def test_predictions_of_two_checkpoints_are_refused(folder, killed_after):
    evaluation_record.check(folder)
    evaluation_record.begin(folder, BEST)
    evaluation_record.keep(folder, "validation", PREDICTED, BEST)
    if killed_after == "test":
        evaluation_record.keep(folder, "test", PREDICTED, BEST)
    message = r"of other weights \(.*\) than .* \(.*\), since an evaluation was stopped: evaluate"
    with pytest.raises(ValueError, match=message):
        evaluation_record.check(folder)
    other = folder / "other"
    other.mkdir()
    evaluate(other, LATEST, "validation", "test")
    with pytest.raises(ValueError, match=message):
        finished.read([str(other), str(folder)])
    evaluate(folder, BEST, "validation", "test")
    evaluation_record.check(folder)


@pytest.mark.parametrize("record", ["{}", '{"checkpoint": "latest", "step": 4}', "[", ""])
def test_a_damaged_record_is_named_and_evaluated_anew(folder, record):
    (folder / evaluation_record.FILE).write_text(record)
    with pytest.raises(reading.Unreadable, match=r"evaluation\.json .*evaluate the run again"):
        evaluation_record.read(folder)
    evaluation_record.begin(folder, LATEST)
    assert not (folder / evaluation_record.OF_SWEEP).exists()
    evaluate(folder, LATEST, "validation", "test")
    evaluation_record.check(folder)


STEP = 7


def variables_of(num_classes, hidden=(6,), seed=0):
    network = models.mlp(num_classes=num_classes, hidden=hidden)
    return network, network.init(jax.random.key(seed), jnp.zeros((1, 4)), train=False)


@pytest.fixture(scope="module", params=[False, True], ids=["own", "averaged"])
def run(request, tmp_path_factory):
    """A run with one checkpoint, and what it is evaluated with."""
    folder = tmp_path_factory.mktemp("run")
    _, variables = variables_of(3)
    tx = train.optimizer("sgd", 0.1)
    state = train.create(variables, losses.objective("adafocal"), tx, 3, 0, averaged=request.param)
    if request.param:
        state = state._replace(average=jax.tree.map(lambda leaf: leaf + 1, state.average))
        variables = {"params": state.average[0]}
    checkpoints = train.Checkpoints(folder / "checkpoints")
    about = {"best": {"nll": {"step": STEP, "epoch": 1.0, "value": 0.5}}}
    checkpoints.save(jax.device_get(state), about, STEP)
    checkpoints.wait()
    checkpoints.close()
    return folder, variables


@pytest.mark.parametrize("ending", ["", ":best_nll", f":{STEP}"])
def test_a_run_hands_out_what_it_is_evaluated_with(run, ending):
    folder, variables = run
    network, random = variables_of(3, seed=1)
    result = initial.variables(f"{folder}{ending}", network, random)
    for one, other in zip(*map(jax.tree.leaves, (result, variables)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_classes_get_another_head(run, capsys):
    folder, variables = run
    network, random = variables_of(5, seed=1)
    result = initial.variables(str(folder), network, random)
    params, before, fresh = (tree["params"] for tree in (result, variables, random))
    np.testing.assert_array_equal(params["hidden1"]["kernel"], before["hidden1"]["kernel"])
    np.testing.assert_array_equal(params["head"]["kernel"], fresh["head"]["kernel"])
    np.testing.assert_array_equal(params["head"]["bias"], fresh["head"]["bias"])
    assert (
        "has another number of classes: the last layer is initialised at random"
        in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="and the data set have different numbers of classes"):
        initial.variables(str(folder), network, random, anew=False)


def test_a_released_network_with_our_classes_or_others(tmp_path):
    name = "theirs.safetensors"
    network, other = (models.resnet([1], width=2, num_classes=n) for n in (4, 6))
    init = functools.partial(network.init, train=False)
    x = jnp.zeros((1, 8, 8, 3))
    theirs, ours = (init(jax.random.key(seed), x) for seed in (0, 1))
    models.write_weights(tmp_path / name, models.to_torch(network, theirs))
    result = initial.variables(str(tmp_path / name), network, ours)
    for one, wanted in zip(*map(jax.tree.leaves, (result, theirs)), strict=True):
        np.testing.assert_array_equal(one, wanted)
    random = other.init(jax.random.key(1), x, train=False)
    result = initial.variables(str(tmp_path / name), other, random)
    np.testing.assert_array_equal(
        result["params"]["conv"]["kernel"], theirs["params"]["conv"]["kernel"]
    )
    assert result["params"]["head"]["kernel"].shape == (2, 6)
