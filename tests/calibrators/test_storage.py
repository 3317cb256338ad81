"""Calibrators go into files and come back; what is no such file is refused in a sentence."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators
from tests.calibrators.members import MEMBERS, problem


@pytest.mark.parametrize("name", MEMBERS)
def test_it_comes_back_as_it_was(name, tmp_path):
    logits, labels = problem()
    params = calibrators.named(name).fit(logits, labels)
    path = tmp_path / "no suffix"
    calibrators.save(path, name, params)
    assert [file.name for file in tmp_path.iterdir()] == ["no suffix"]
    found_name, found = calibrators.load(path)
    assert found_name == name
    assert type(found) is type(params)
    assert found.state.name == params.state.name
    jax.tree.map(np.testing.assert_array_equal, found, params)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True):
        assert one.dtype == other.dtype
    with np.load(path, allow_pickle=False) as file:  # plain: readable by anybody
        assert json.loads(str(file["calibrator"])) == {"format": 1, "name": name}


def test_many_models_go_into_one_file(tmp_path):
    models = [problem(seed=seed) for seed in range(3)]
    logits, labels = (jnp.stack([jnp.asarray(model[part]) for model in models]) for part in (0, 1))
    params = jax.vmap(calibrators.temperature.fit)(logits, labels)
    calibrators.save(tmp_path / "t.npz", "temperature", params)
    _, found = calibrators.load(tmp_path / "t.npz")
    np.testing.assert_array_equal(found.temperature, params.temperature)


def one_array():
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


def write(path, about, **arrays):
    np.savez(path, calibrator=np.array(about), **arrays)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no file"),
        (lambda path: path.write_bytes(b""), "damaged, or not a calibrator"),
        (lambda path: path.write_bytes(b"PK\3\4 rubbish"), "damaged, or not a calibrator"),
        (lambda path: path.mkdir(), "damaged, or not a calibrator"),
        (lambda path: np.savez(path, logits=np.ones(3)), "damaged, or not a calibrator"),
        (lambda path: path.write_bytes(one_array()), "damaged, or not a calibrator"),
        (lambda path: write(path, np.array([{}], object)), "damaged, or not a calibrator"),
        (lambda path: write(path, "[1]"), "damaged, or not a calibrator"),
        (lambda path: write(path, '{"format": 2, "name": "platt"}'), "'platt' in format 2; known"),
        (lambda path: write(path, '{"format": 1, "name": "plat"}'), "'plat' in format 1; known"),
        (
            lambda path: write(path, '{"format": 1, "name": "platt"}', slope=np.ones(1)),
            "intercept, state/code, state/nll_after, state/nll_before differ",
        ),
        (
            lambda path: write(path, '{"format": 1, "name": "platt"}', slope=np.array([{}])),
            "damaged, or not a calibrator",
        ),
    ],
)
def test_what_is_no_calibrator_is_refused(make, message, tmp_path):
    path = tmp_path / "file.npz"
    make(path)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        calibrators.load(path)
    assert str(path) in str(caught.value)


def test_a_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "t.npz"
    calibrators.save(path, "temperature", calibrators.temperature.fit(*problem()))
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged"):
            calibrators.load(path)


def test_a_name_must_fit_its_parameters(tmp_path):
    params = calibrators.temperature.fit(*problem())
    with pytest.raises(TypeError, match="vector has other parameters than these"):
        calibrators.save(tmp_path / "t.npz", "vector", params)
    with pytest.raises(ValueError, match="did you mean 'vector'"):
        calibrators.save(tmp_path / "t.npz", "vectr", params)
    assert not list(tmp_path.iterdir())
