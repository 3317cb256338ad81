"""Exported networks: they run without the library, and predict what the library predicts."""

import importlib.util
import json
import subprocess
import sys
import types
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax import train
from experiments.running import exporting, trained
from tests.experiments.processes import environment, finish
from tests.experiments.test_train import CONFIG, DIAGNOSED, SHORT

JAX_ALONE = """
import sys
for name in ("calib_jax", "experiments", "configs", "flax", "optax", "orbax", "ml_collections"):
    sys.modules[name] = None  # importing it raises an error
import jax
import numpy as np

file, inputs, outputs = sys.argv[1:]
with open(file, "rb") as opened:
    model = jax.export.deserialize(bytearray(opened.read()))
assert model.platforms == ("cpu", "cuda", "tpu")
inputs = np.load(inputs)
whole = jax.jit(model.call)(inputs)
one = model.call(inputs[:1])  # of another batch size
np.testing.assert_allclose(one["logits"], whole["logits"][:1], rtol=1e-5, atol=1e-5)
np.savez(outputs, **whole)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    finish("train", CONFIG, f"--workdir={folder}", *SHORT, DIAGNOSED)
    return folder


@pytest.mark.slow
def test_an_exported_network_runs_with_jax_alone(folder, tmp_path):
    output = finish("export", f"--workdir={folder}")
    file = folder / "exported.jax"
    about = json.loads((folder / "exported.jax.json").read_text())
    assert f"written: {file} (" in output
    assert about["inputs"] == "uint8[batch, 8, 8, 1]"
    assert about["class_names"] == list("0123456789")
    assert about["checkpoint"] == "latest, step 30"

    experiment, (network,) = trained.restored([folder], None)
    dataset = experiment.dataset
    logits, labels = (
        np.asarray(values)
        for values in trained.predictions(experiment, [network.state], dataset.validation)[:2]
    )
    scores = logits[0].astype(float)

    def nll(temperature):
        log_p = scipy.special.log_softmax(scores / temperature, axis=1)
        return -log_p[np.arange(len(labels)), labels].mean()

    best = scipy.optimize.minimize_scalar(nll, bounds=(0.1, 10), method="bounded").x
    assert about["calibrator"]["params"]["temperature"] == pytest.approx(best, rel=1e-3)

    tested = trained.predictions(experiment, [network.state], dataset.test).logits[0].astype(float)
    np.save(tmp_path / "inputs.npy", dataset.test[np.arange(7)].inputs)
    names = [file, tmp_path / "inputs.npy", tmp_path / "outputs.npz"]
    command = [sys.executable, "-c", JAX_ALONE, *map(str, names)]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True)
    outputs = np.load(tmp_path / "outputs.npz")
    expected = tested[:7] / about["calibrator"]["params"]["temperature"]
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-4, atol=1e-4)
    probabilities = scipy.special.softmax(expected, axis=1)
    np.testing.assert_allclose(outputs["probabilities"], probabilities, atol=1e-5)


def test_what_cannot_be_exported_is_refused_at_once(folder, tmp_path, monkeypatch):
    (tmp_path / "there").touch()
    output = finish("export", f"--workdir={folder}", f"--out={tmp_path}/there", code=2)
    assert output == f"error: {tmp_path}/there exists: remove it, or give another --out=FILE.\n"
    out = tmp_path / "new"
    with pytest.raises(ValueError, match="there is no run in"):
        exporting.check_request(tmp_path, out, None)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none: create it"):
        exporting.check_request(folder, tmp_path / "none" / "file", None)
    (tmp_path / "seed_3").mkdir()
    with pytest.raises(ValueError, match=r"several seeds: export one, --workdir=.*seed_3\."):
        exporting.check_request(tmp_path, out, None)
    unfinished = {"done": False}
    with monkeypatch.context() as patch:
        patch.setattr(train.Checkpoints, "about", lambda self: unfinished)
        with pytest.raises(ValueError, match=r"is not finished: .*give --checkpoint=latest\."):
            exporting.check_request(folder, out, None)
        exporting.check_request(folder, out, "latest")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs flatbuffers: pip install 'calib_jax\[export\]'"):
        exporting.check_request(folder, out, None)


class Pair(NamedTuple):
    second: np.ndarray
    first: np.ndarray


def experiment_of(forward):
    return types.SimpleNamespace(
        dataset=types.SimpleNamespace(prepare=lambda pair: pair._replace(first=2.0 * pair.first)),
        task=types.SimpleNamespace(forward=forward),
        config={"excluded_class": 1},
    )


def weighted(params, model_state, pair, **_):
    return params * pair.first - pair.second, model_state, None


def test_inputs_of_several_arrays_have_names():
    """The order of the names differs from that of the fields."""
    state = types.SimpleNamespace(evaluated=(np.float32(3), {}))
    given = Pair(np.ones((2, 3), np.float32), np.full((2, 3), 5, np.int32))
    function, inputs = exporting.function(experiment_of(weighted), state, lambda z: z / 2, given)
    exported = exporting.exported(function, inputs, 0)
    described = exporting.described(exported, inputs)
    assert described == {"first": "int32[batch, 3]", "second": "float32[batch, 3]"}
    outputs = jax.export.deserialize(exported.serialize()).call(inputs)
    np.testing.assert_allclose(outputs["logits"], [[14.5, -np.inf, 14.5]] * 2)
    np.testing.assert_allclose(outputs["probabilities"], [[0.5, 0, 0.5]] * 2)


def counted(params, model_state, pair, **_):
    logits, *_ = weighted(params, model_state, pair)
    return logits + np.arange(len(logits))[:, None], model_state, None


def test_a_network_of_one_batch_size_needs_it():
    state = types.SimpleNamespace(evaluated=(np.float32(3), {}))
    given = Pair(np.ones((2, 3), np.float32), np.full((2, 3), 5, np.int32))
    function, inputs = exporting.function(experiment_of(counted), state, lambda z: z, given)
    with pytest.raises(ValueError, match=r"on the size of a batch: give --batch_size=N, or"):
        exporting.exported(function, inputs, 0)
    exported = exporting.exported(function, inputs, 2)
    assert exporting.described(exported, inputs)["first"] == "int32[2, 3]"
    np.testing.assert_allclose(exported.call(inputs)["logits"][:, 0], [29, 30])


def test_a_calibrator_of_numpy_is_refused():
    logits = np.zeros((2, 3), np.float32)
    exporting.check_calibrator("halved", lambda z: jnp.asarray(z) / 2, logits)
    with pytest.raises(ValueError, match=r"the calibrator own cannot be exported.* with jax.numpy"):
        exporting.check_calibrator("own", lambda z: np.asarray(z) / 2, logits)
