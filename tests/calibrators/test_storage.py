"""Calibrators go into files and come back; what is no such file is refused in a sentence."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators
from tests.calibrators import MEMBERS, problem


def write(path, about, **arrays):
    np.savez(path, calibrator=np.array(about), **arrays)


ABOUT = '{"format": 1, "name": "platt"}'
EVENT = '{"format": 1, "name": "histogram", "event": "score"}'
FIELDS = "edges", "frequency", "scores", "state/code", "state/nll_before", "state/nll_after"
HISTOGRAM = {field: np.ones(2) for field in FIELDS}

STATE = {f"state/{field}": np.ones(()) for field in ("code", "nll_before", "nll_after")}
SHAPED = STATE | {"edges": np.ones((1, 3)), "frequency": np.ones((1, 2)), "scores": np.arange(3)}


def without_scores():
    return {field: one for field, one in HISTOGRAM.items() if field != "scores"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no file"),
        (lambda path: path.write_bytes(b"PK\3\4 rubbish"), "cannot be read as a calibrator"),
        (lambda path: np.savez(path, logits=np.ones(3)), "no array 'calibrator'; it has logits"),
        (lambda path: write(path, np.array([{}], object)), "pickled objects, which are never read"),
        (lambda path: write(path, '{"format": 2, "name": "platt"}'), "'platt' in format 2; known"),
        (lambda path: write(path, '{"format": 1, "name": "plat"}'), "'plat' in format 1; known"),
        (lambda path: write(path, '["platt"]'), "does not hold a name"),
        (lambda path: write(path, '{"format": 1, "name": ["platt"]}'), "does not hold a name"),
        (lambda path: write(path, EVENT.replace("histogram", "vector")), "does not calibrate"),
        (lambda path: write(path, EVENT, **{**HISTOGRAM, "edges": np.array("ab")}), "edges is of"),
        (lambda path: write(path, EVENT, **without_scores()), "scores differ"),
        (
            lambda path: write(path, EVENT, **SHAPED | {"edges": np.ones((1, 4))}),
            "edges has the sh",
        ),
        (lambda path: write(path, EVENT, **SHAPED | {"state/code": np.ones(3)}), "state/code has"),
        (lambda path: write(path, EVENT, **SHAPED | {"scores": np.arange(3)[::-1]}), "not ascend"),
        (
            lambda path: write(path, ABOUT, slope=np.ones(1)),
            "intercept, state/code, state/nll_after, state/nll_before differ",
        ),
    ],
)
def test_what_is_no_calibrator_is_refused(make, message, tmp_path):
    path = tmp_path / "file.npz"
    make(path)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        calibrators.load(path)
    assert str(path) in str(caught.value)


# The arrays in a file of each calibrator. Files written by earlier versions must stay readable.
HELD = {
    "bias_corrected_temperature": {"slope": (), "intercept": 3},
    "bbq": {"edges": (3, 81), "values": (3, 80)},
    "beta": {"a": 3, "b": 3, "c": 3},
    "dirichlet": {"matrix": (3, 3), "intercept": 3},
    "ensemble_temperature": {"temperature": (), "mixture": 3},
    "histogram": {"edges": (3, 16), "frequency": (3, 15)},
    "isotonic": {"knots": (3, 80), "values": (3, 80)},
    "matrix": {"matrix": (3, 3), "intercept": 3},
    "platt": {"slope": 3, "intercept": 3},
    "sms": {"temperature": (), "uniform": (), "matrix": (3, 3), "intercept": 3},
    "svs": {"temperature": (), "uniform": (), "slope": 3, "intercept": 3},
    "temperature": {"temperature": ()},
    "vector": {"slope": 3, "intercept": 3},
    "venn_abers": {
        "knots": 80,
        "p0": np.full(80, 0.5, np.float32),
        "p1": 80,
        "num_classes": np.int32(3),
    },
}


@pytest.mark.parametrize(
    ("name", "models"), [(name, ()) for name in MEMBERS] + [("sms", (2,)), ("venn_abers", (2,))]
)
def test_files_written_once_can_always_be_read_and_come_back_as_they_were(name, models, tmp_path):
    arrays = {"state/nll_before": np.float32(2), "state/nll_after": np.float32(1)}
    arrays |= {"state/code": np.int32(0)}
    for field, held in HELD[name].items():
        start, size = 0.5 + 0.1 * len(arrays), np.prod(held, dtype=int)
        ascending = np.linspace(start, start + 1, size, dtype=np.float32)
        arrays[field] = held if hasattr(held, "dtype") else ascending.reshape(held)
    arrays = {field: np.broadcast_to(one, (*models, *one.shape)) for field, one in arrays.items()}
    about = {"format": 1, "name": name}
    write(tmp_path / "old.npz", json.dumps(about), **arrays)
    found_name, params = calibrators.load(tmp_path / "old.npz")
    assert found_name == name
    assert type(params) is calibrators.named(name).Params
    assert params.state.code.shape == models
    apply = calibrators.named(name).apply
    apply = jax.vmap(apply, (0, None)) if models else apply
    answer = jax.eval_shape(apply, params, jnp.asarray(problem()[0]))
    assert answer.shape == (*models, 80, 3)
    calibrators.save(tmp_path / "no suffix", name, params)
    assert {file.name for file in tmp_path.iterdir()} == {"no suffix", "old.npz"}
    with np.load(tmp_path / "no suffix", allow_pickle=False) as file:  # readable by anybody
        assert {*file.files} == {"calibrator", *arrays}
        assert json.loads(str(file["calibrator"])) == about
        for field, one in arrays.items():
            np.testing.assert_array_equal(file[field], one)
            assert file[field].dtype == np.asarray(one).dtype


def test_a_name_must_fit_its_parameters(tmp_path):
    params = calibrators.temperature.fit(*problem())
    with pytest.raises(TypeError, match=r"vector: it needs .* these are TemperatureParams"):
        calibrators.save(tmp_path / "t.npz", "vector", params)
    with pytest.raises(ValueError, match="did you mean 'vector'"):
        calibrators.save(tmp_path / "t.npz", "vectr", params)
    assert not list(tmp_path.iterdir())
