"""Exported networks: they run without the library, and predict what the library predicts."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax import train
from experiments import exporting
from experiments.evaluation import trained
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
