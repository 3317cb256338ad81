"""Headers are compared with the file, and an unreadable file raises an error that names it."""

import json
import os
import struct
import zipfile

import numpy as np
import pytest

from calib_jax.core.files import reading

KIND = "a file of numbers"


def header(shape, descr="<f4", version=b"\x01\x00", length=None, order=False):
    """The beginning of an .npy file, by the description of its format."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + version + size + text


def npz(path, content, name="a.npy", method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr(name, content)
    return path


def read(path):
    with reading.npz(path, KIND) as arrays:
        return {name: arrays[name] for name in arrays.names}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_every_kind_are_read(tmp_path, save):
    written = {
        "columns first": np.arange(6.0).reshape(2, 3).T,
        "one number": np.array(3),
        "other bytes first": np.arange(3, dtype=">f4"),
        "other bytes first, whole": np.arange(3, dtype=">i8"),
        "more than 64 bits": np.array([1, 2, 1.5], np.longdouble),
        "text": np.array(["a", "bc"]),
        "none": np.empty((0, 4), np.float16),
        "several pieces": np.arange(300_000.0),
    }
    save(tmp_path / "a.npz", **written)
    actual = read(tmp_path / "a.npz")
    for name, array in written.items():
        np.save(tmp_path / "a.npy", array)
        for taken in (actual[name], reading.npy(tmp_path / "a.npy", KIND)):
            np.testing.assert_array_equal(taken, array)
            assert taken.dtype.isnative
            assert taken.dtype.kind == array.dtype.kind
            assert taken.dtype.itemsize == min(array.dtype.itemsize, 8)
    assert isinstance(reading.npy(tmp_path / "a.npy", KIND), np.memmap)


def test_only_what_is_named_is_read(tmp_path):
    np.savez(tmp_path / "a.npz", wanted=np.arange(3), useless=np.zeros(10_000))
    with reading.npz(tmp_path / "a.npz", KIND, at_most=100) as arrays:
        assert arrays.names == ("wanted", "useless")
        assert arrays["wanted"].tolist() == [0, 1, 2]
    with (
        pytest.raises(reading.Unreadable, match=r"a\.npz .* useless .* needs 80,000 bytes"),
        reading.npz(tmp_path / "a.npz", KIND, at_most=100) as arrays,
    ):
        arrays["useless"]
    with (
        pytest.raises(reading.Unreadable, match=r"no array 'labels'; it has wanted, useless"),
        reading.npz(tmp_path / "a.npz", KIND) as arrays,
    ):
        arrays["labels"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header((2,)) + bytes(4), r"shape \(2,\) .* needs 8 bytes, and has 4"),
        (header((2,)) + bytes(12), "needs 8 bytes, and has 12"),
        (header((2**40, 2**40)) + bytes(8), "needs .* bytes, and has 8"),
        (header((2**80,), "|b1"), "needs .* bytes, and has 0"),
        (header((-1,)), r"shape \(-1,\)"),
        (header((2**60,), "<U0"), "neither numbers nor text"),
        (header((1,), "|V8") + bytes(8), "neither numbers nor text"),
        (header((1,), "<M8[s]") + bytes(8), "neither numbers nor text"),
        (header((1,), [("a", "<f4")]) + bytes(4), "neither numbers nor text"),
        (header((1,), "|O") + b"\x80\x04.", "pickled objects, which are never read"),
        (header((1,), "<U1") + b"\xff\xff\xff\x7f", "characters that do not exist"),
        (header((1,), "<q99") + bytes(4), "no whole array"),
        (header((1,), ((),)) + bytes(4), "no whole array"),
        (header((1,), version=b"\x02\x00", length=2**32 - 1), "no whole array"),
        (header((1,), version=b"\x09\x00"), "no whole array"),
        (header("[" * 5000), "no whole array"),
        (header("{[]: 1}"), "no whole array"),
        (b"\x93NUMPX" + bytes(80), "no whole array"),
        (b"", "no whole array"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, content, message):
    (tmp_path / "a.npy").write_bytes(content)
    for act in (
        lambda: read(npz(tmp_path / "a.npz", content)),
        lambda: reading.npy(tmp_path / "a.npy", KIND),
    ):
        with pytest.raises(reading.Unreadable, match=rf"a\.np[yz] cannot be read as.*{message}"):
            act()


def test_a_header_is_not_read_beyond_its_bound(tmp_path):
    """Spaces that a few bytes stand for would be the header."""
    spaces = b" " * 2_000_000
    npz(tmp_path / "a.npz", header((1,), version=b"\x02\x00", length=len(spaces)) + spaces)
    with pytest.raises(reading.Unreadable, match="header would have more than 65,536 bytes"):
        read(tmp_path / "a.npz")


def test_members_that_numpy_does_not_write(tmp_path):
    whole = header((2,)) + bytes(8)
    path = tmp_path / "a.npz"
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        with pytest.raises(reading.Unreadable, match=f"a is compressed by method {method}"):
            read(npz(path, whole, method=method))
    content = npz(path, whole).read_bytes()
    where = content.rindex(b"PK\x01\x02")
    for place, bits, message in ((8, 1, "encrypted"), (10, 99, "method 99")):
        changed = bytearray(content)
        changed[where + place] = changed[place - 2] = bits
        path.write_bytes(changed)
        with pytest.raises(reading.Unreadable, match=message):
            read(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", whole)
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a.npy", whole)
    with pytest.raises(reading.Unreadable, match="two arrays 'a'"):
        read(path)


def test_what_is_no_plain_file_is_named(tmp_path):
    os.symlink("loop", tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    readers = (reading.content, reading.json_value, reading.npy, lambda path, _: read(path))
    for act in readers:
        for name, why in (
            ("loop", "Too many levels of symbolic links"),
            ("pipe", "it is no plain file"),
            ("folder", "it is a folder"),
        ):
            with pytest.raises(reading.Unreadable, match=rf"{name} cannot be read as .*: {why}; "):
                act(tmp_path / name, KIND)
        with pytest.raises(FileNotFoundError, match=r"^there is no file .*absent\.$"):
            act(tmp_path / "absent", KIND)


def test_texts_and_json(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, NaN]}')
    assert reading.json_mapping(path, KIND)["a"][0] == 1
    for content, message in (
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe", "it is not in UTF-8; save the file in this encoding"),
        (b"1" * 10_000, "4300 digits"),
        (b'{"a": ', "Expecting value"),
        (b"[]", "no mapping, but '\\[\\]'"),
        (b"null", "no mapping"),
        (b"", "Expecting value"),
        (b" " * 101, "it has 101 bytes, and at most 100 are read"),
    ):
        path.write_bytes(content)
        with pytest.raises(reading.Unreadable, match=rf"a\.json cannot .*{message}") as caught:
            reading.json_mapping(path, KIND, at_most=100 if len(content) == 101 else 200_000)
        assert "\n" not in str(caught.value)


def test_the_guard_takes_damage_and_no_mistakes():
    for error in (TypeError("ours"), AttributeError("ours"), AssertionError("ours")):
        with pytest.raises(type(error), match="ours"), reading.guard("a", KIND):
            raise error
        with pytest.raises(reading.Unreadable), reading.guard("a", KIND, library=True):
            raise error
    needed = ModuleNotFoundError("No module named 'PIL'")
    with pytest.raises(ModuleNotFoundError), reading.guard("a", KIND, library=True):
        raise needed
    inner = json.JSONDecodeError("a\x1b[2J\nb" * 100, "", 0)
    with pytest.raises(reading.Unreadable) as caught, reading.guard("a", KIND, "write it anew"):
        raise inner
    assert caught.value.__cause__ is inner
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    with (
        pytest.raises(reading.Unreadable, match="the reader raised EOFError; write it anew"),
        reading.guard("a", KIND, "write it anew"),
    ):
        raise EOFError
