"""Files made from a run: exported networks, vectors of texts, and word vectors."""

import functools
import importlib.util
import json
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax import calibrators, data, models, train
from calib_jax.data.formats import vectors
from experiments import embed, exporting
from experiments.datasets.text_encoder import TextEncoder, principal_components, write_word_vectors
from experiments.evaluation import trained
from tests.data import tiny
from tests.experiments.processes import environment, finish
from tests.experiments.test_train import CONFIG, DIAGNOSED, SHORT
from tests.train.test_loop import run as fit

JAX_ALONE = """
import sys
import types
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


@pytest.mark.slow
def test_an_exported_network_runs_with_jax_alone(tmp_path):
    folder = tmp_path / "run"
    finish("train", CONFIG, f"--workdir={folder}", *SHORT, DIAGNOSED)
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


@pytest.mark.parametrize("name", ["temperature", "dirichlet", "isotonic"])
def test_a_calibrator_takes_batches_of_any_size(name):
    """Of an exported network: the number of rows is a symbol there."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((60, 3), np.float32)
    calibrator = calibrators.named(name)
    params = calibrator.fit(logits, random.integers(3, size=60))
    exported = exporting.exported(
        lambda inputs: {"logits": calibrator.apply(params, inputs)}, logits, 0
    )
    for rows in (logits[:1], logits):
        wanted = calibrator.apply(params, rows)
        np.testing.assert_allclose(exported.call(rows)["logits"], wanted, rtol=1e-5)


def test_what_cannot_be_exported_is_refused_at_once(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    fit(folder)
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


BERT = {"words": 60, "width": 6, "depth": 1, "heads": 2, "mlp_width": 8, "places": 40}
GIVEN = "clinc150:scope=out:length=30"


def write_bert(folder, seed=0):
    """Write a random BERT with its vocabulary."""
    folder.mkdir(exist_ok=True)
    network = models.bert(num_classes=2, **BERT)
    init = jax.jit(functools.partial(network.init, train=False))
    models.write_bert(folder, network, init(jax.random.key(seed), network.example_inputs()))
    tiny.word_pieces(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("embedded")
    write_bert(path / "bert")
    tiny.clinc150(path)
    return path


@pytest.fixture(scope="module")
def encoder(texts):
    return TextEncoder(texts / "bert")


def embedded(texts, encoder, place, given=GIVEN):
    dataset = embed.texts_of(given, encoder, str(texts))
    embed.prepare(place, embed.identity(given, dataset, encoder), dataset)
    return dataset, embed.compute(place, dataset, encoder, 2)


def test_a_vector_is_the_mean_output_for_its_text(texts, encoder, tmp_path):
    dataset, computed = embedded(texts, encoder, tmp_path / "v")
    assert computed == 9
    network, variables = models.read_bert(texts / "bert")
    encode = jax.jit(network.encoder().apply)
    found = data.from_vectors(str(tmp_path / "v"), texts="clinc150", encoder="bert")
    for part in vectors.PARTS:
        tokens = getattr(dataset, part).inputs["tokens"]
        np.testing.assert_array_equal(getattr(found, part).weights, np.zeros(3))
        hidden = encode({"params": variables["params"]["bert"]}, tokens, np.zeros_like(tokens))
        for row, of_row, vector in zip(tokens, hidden, getattr(found, part).inputs, strict=True):
            expected = np.asarray(of_row)[row > 0].mean(axis=0)
            np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5)


def test_only_missing_vectors_are_computed(texts, encoder, tmp_path):
    place = tmp_path / "v"
    embedded(texts, encoder, place)
    whole = np.load(place / "test.npy")
    assert embedded(texts, encoder, place)[1] == 0
    stored = np.lib.format.open_memmap(place / "test.npy", mode="r+")
    stored[1] = np.nan  # a command that was stopped
    stored[2, 3:] = np.nan
    stored.flush()
    with pytest.raises(ValueError, match="lacks 2 of 3 vectors"):
        data.from_vectors(str(place))
    assert embedded(texts, encoder, place)[1] == 2
    np.testing.assert_allclose(np.load(place / "test.npy"), whole, rtol=0, atol=1e-6)


def test_texts_that_are_longer_than_the_encoder_takes_are_refused(texts, encoder):
    tiny.sst(texts)
    short = types.SimpleNamespace(folder=encoder.folder, places=4)
    for given, way in ((GIVEN, "--data=clinc150:length=4:cut=end"), ("sst", "another --encoder")):
        with pytest.raises(ValueError, match=f"takes 4: give {way}"):
            embed.texts_of(given, short, str(texts))


def test_every_word_has_a_vector_in_a_file_of_a_new_folder(texts, tiny_folder, tmp_path):
    path = tmp_path / "new" / "vectors.txt"
    write_word_vectors(str(path), str(texts / "bert"), "sst", 2, data_dir=str(tiny_folder))
    words = data.named("sst", data_dir=str(tiny_folder)).vocabulary.words
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    assert [len(line) for line in lines] == [3] * len(lines)
    assert [line[0] for line in lines] == [word for word in words if word != data.UNKNOWN]


def test_components_are_those_of_a_singular_value_decomposition():
    vectors = np.random.default_rng(0).standard_normal((30, 5)) * np.arange(1, 6) + 7
    projected, share = principal_components(vectors, 3)
    centered = vectors - vectors.mean(axis=0)
    left, sizes, right = np.linalg.svd(centered, full_matrices=False)
    signs = [np.sign(row[np.abs(row).argmax()]) for row in right]
    np.testing.assert_allclose(projected, (left * sizes * signs)[:, :3], atol=1e-10)
    assert share == pytest.approx(np.sum(sizes[:3] ** 2) / np.sum(sizes**2))
    negative, _ = principal_components(-vectors, 3)
    np.testing.assert_allclose(negative, -projected, atol=1e-10)
    with pytest.raises(ValueError, match="width must lie in"):
        principal_components(vectors, 6)
