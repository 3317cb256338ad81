"""Files of weights: what is written is read, and what is damaged or could run code is refused."""

import json
import pickle
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

DTYPES = (*"bBhHiIlLefd?", jnp.bfloat16)


def arrays(dtypes=DTYPES):
    draw = np.random.default_rng(0)
    shapes = [(3, 2), (), (0, 4), (5,)]
    return {
        f"layer.{i}.weight": np.asarray(draw.integers(0, 2, shapes[i % 4])).astype(dtype)
        for i, dtype in enumerate(dtypes)
    }


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_what_is_written_is_read(suffix, tmp_path):
    written = arrays(DTYPES if suffix == "safetensors" else DTYPES[:-1])
    written["file"] = np.arange(6.0).reshape(2, 3).T  # neither its name nor its order matters
    written["big-endian"] = np.arange(3, dtype=">f4")
    path = tmp_path / f"weights.{suffix}"
    for _ in range(2):  # the second time over the first
        models.write_weights(path, written)
    actual = models.read_weights(path)
    assert sorted(actual) == sorted(written)
    for name, array in written.items():
        np.testing.assert_array_equal(actual[name], array)
        assert actual[name].dtype == array.dtype.newbyteorder("=")
    assert list(tmp_path.iterdir()) == [path]


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_a_file_written_elsewhere(tmp_path):
    """Bytes by hand: other orders, the metadata, and spaces behind the header."""
    header = {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "I16", "shape": [2], "data_offsets": [4, 8]},
        "a": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]},
    }
    text = json.dumps(header).encode() + b"   "
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors(text, b"\x80\x3f\x00\xc0" + b"\x01\x00\xff\xff"))
    actual = models.read_weights(path)
    assert actual["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(actual["a"].astype(float), [[1], [-2]])
    np.testing.assert_array_equal(actual["b"], [1, -1])


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_damaged_file_is_refused(suffix, tmp_path):
    path = tmp_path / f"w.{suffix}"
    models.write_weights(path, {"a": np.arange(100.0)})
    whole = path.read_bytes()
    for content in (b"", b"words", whole[:100], whole[:-30], b"\x93NUMPY" + bytes(20)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"w\.{suffix} cannot be read as an? \.{suffix} file"):
            models.read_weights(path)


def test_arrays_of_more_than_64_bits_come_as_float64(tmp_path):
    np.savez(tmp_path / "w.npz", a=np.array([0.5, 2], np.longdouble), b=np.array(3, ">i2"))
    actual = models.read_weights(tmp_path / "w.npz")
    assert (actual["a"].dtype, actual["b"].dtype) == (np.float64, np.int16)
    assert (actual["a"].tolist(), actual["b"].tolist()) == ([0.5, 2], 3)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "w.npz", a=np.array([Trap()]))
    with pytest.raises(ValueError, match=r"w\.npz .* pickled objects, which are never read"):
        models.read_weights(tmp_path / "w.npz")
    (tmp_path / "old.model").write_bytes(pickle.dumps(Trap()))
    with zipfile.ZipFile(tmp_path / "new.model", "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Trap()))
    (tmp_path / "w.pt").write_bytes(b"")
    for name in ("old.model", "new.model", "w.pt"):
        with pytest.raises(ValueError, match=r"pickle of PyTorch.*numpy.savez\('weights.npz'"):
            models.read_weights(tmp_path / name)


def test_other_files(tmp_path):
    path = tmp_path / "w.h5"
    path.write_bytes(b"HDF")
    for act in (models.read_weights, lambda path: models.write_weights(path, {})):
        with pytest.raises(ValueError, match=r"w\.h5 is neither \.npz nor \.safetensors"):
            act(path)
    for missing in ("w.npz", "w.safetensors"):
        with pytest.raises(FileNotFoundError):
            models.read_weights(tmp_path / missing)


@pytest.mark.parametrize(
    ("name", "array", "suffix", "message"),
    [
        ("a", np.zeros(2, jnp.bfloat16), "npz", "a is bfloat16.*use .safetensors"),
        ("a", np.array(["x"]), "npz", "a is <U1, which .npz has no name for, and is no number"),
        ("a", np.array([Trap()]), "npz", "a is object"),
        ("a", np.zeros(2, complex), "safetensors", "no place for a of dtype complex128"),
    ],
)
def test_what_a_file_cannot_hold(name, array, suffix, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        models.write_weights(tmp_path / f"w.{suffix}", {name: array})
    assert not list(tmp_path.iterdir())
