"""Files of MATLAB: what SciPy wrote is read, and what announces more than it has is refused."""

import struct

import numpy as np
import pytest
import scipy.io

from calib_jax.core.files import reading
from calib_jax.data.formats import matlab

ADVICE = "get it anew"


@pytest.mark.parametrize("compressed", [False, True])
def test_what_scipy_wrote_is_read(tmp_path, compressed):
    random = np.random.default_rng(0)
    written = {
        f"a{kind}": random.integers(0, 100, (3, 1, 5)).astype(kind)
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
    }
    written |= {"one": np.float64(3), "none": np.zeros((0, 2)), "text": "miau", "long": "a" * 99}
    table = np.zeros(3, [("number", object), ("name", object)])
    table["number"], table["name"] = [1, 2.5, 3], ["n1", "longer", "n3"]
    path = tmp_path / "a.mat"
    scipy.io.savemat(
        path, written | {"table": table, "not asked for": 1j}, do_compression=compressed
    )
    result, read_by_scipy = matlab.read(path, [*written, "table"], ADVICE), scipy.io.loadmat(path)
    assert result.keys() == {*written, "table"}
    for name in written:
        if isinstance(result[name], str):
            assert result[name] == written[name]
        else:
            np.testing.assert_array_equal(result[name], read_by_scipy[name])
            assert result[name].dtype == read_by_scipy[name].dtype
    assert [float(number.item()) for number in result["table"]["number"]] == [1, 2.5, 3]
    assert result["table"]["name"] == ["n1", "longer", "n3"]
    with pytest.raises(reading.Unreadable, match=r"a\.mat cannot be read .*no variable other"):
        matlab.read(path, ["other"], ADVICE)


def test_more_than_the_bound_is_not_unpacked(tmp_path):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": np.zeros(1_000_000)}, do_compression=True)
    assert path.stat().st_size < 20_000
    with pytest.raises(reading.Unreadable, match=r"a\.mat .* more bytes than are read"):
        matlab.read(path, ["X"], ADVICE, at_most=7_999_999)
    assert matlab.read(path, ["X"], ADVICE)["X"].shape == (1, 1_000_000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.replace(b"\x0f\0\0\0", b"\x01\0\0\0", 1), "kind 1, which is no"),
        (lambda plain: plain[:126] + b"XX" + plain[128:], "not begin like one of version 5"),
        (lambda plain: plain[:-3], "bytes of"),
        (lambda plain: plain + b"\0\0\0", "unpack"),
    ],
)
def test_what_is_damaged_is_named(tmp_path, change, message):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": np.arange(3)}, do_compression=True)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(reading.Unreadable, match=rf"a\.mat cannot be read .*{message}"):
        matlab.read(path, ["X"], ADVICE)


@pytest.mark.parametrize("width", [-242, 0, 2**31 - 1])
def test_a_width_of_names_that_lies_is_refused(tmp_path, width):
    scipy.io.savemat(tmp_path / "a.mat", {"s": {"field": 1.0}})
    whole = (tmp_path / "a.mat").read_bytes()
    tag = struct.pack("<HH", 5, 4)  # a short part with one int32
    assert whole.count(tag) == 1
    place = whole.index(tag) + 4
    (tmp_path / "a.mat").write_bytes(whole[:place] + struct.pack("<i", width) + whole[place + 4 :])
    with pytest.raises(reading.Unreadable, match=rf"fields have {width:,} characters"):
        matlab.read(tmp_path / "a.mat", ["s"], "get it anew")


def test_a_shape_that_lies_asks_for_no_memory(tmp_path):
    path = tmp_path / "a.mat"
    for value in (np.arange(3, dtype=np.int32), np.zeros(2, [("a", object), ("b", object)])):
        scipy.io.savemat(path, {"X": value})
        content = path.read_bytes()
        shape = np.array([1, len(value)], "<i4").tobytes()
        assert shape in content
        lie = np.array([2**31 - 1, 2**31 - 1], "<i4").tobytes()
        path.write_bytes(content.replace(shape, lie, 1))
        with pytest.raises(reading.Unreadable, match=r"a\.mat cannot be read"):
            matlab.read(path, ["X"], ADVICE)
