"""Files of others are read whole or refused in a sentence, and ours are written whole or not.

Texts are escaped for the format of the file.
"""

import functools
import io
import json
import os
import pickle
import time
import types
import zipfile

import numpy as np
import pytest

from calib_jax.core import texts
from calib_jax.core.files import reading, writing

ARRAYS = {
    "floats": np.linspace(0, 1, 7, dtype=np.float32).reshape(7, 1),
    "big_endian": np.arange(5, dtype=">i8"),
    "texts": np.array(["a", "bc"]),
    "empty": np.zeros((0, 3)),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
}


def array_of(path, name):
    with reading.npz(path, "arrays") as arrays:
        return arrays[name]


def half_of(written, name=""):
    """Begin to write, and fail."""
    with written as new:
        (new / name if name else new).write_text("half")
        raise KeyError


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read(tmp_path, save):
    path = tmp_path / "arrays.npz"
    save(path, **ARRAYS)
    with reading.npz(path, "arrays") as arrays:
        assert arrays.names == tuple(ARRAYS)
        for name, array in ARRAYS.items():
            actual = arrays[name]
            np.testing.assert_array_equal(actual, array)
            assert actual.dtype.isnative
    with pytest.raises(reading.Unreadable, match="it has no array 'other'; it has floats, "):
        array_of(path, "other")
    for name in ("floats", "big_endian"):
        np.save(tmp_path / "one.npy", ARRAYS[name])
        np.testing.assert_array_equal(reading.npy(tmp_path / "one.npy", "one"), ARRAYS[name])
    for content in (npy_of(np.array([{}, []], object), allow_pickle=True), path.read_bytes()):
        (tmp_path / "one.npy").write_bytes(content)
        with pytest.raises(reading.Unreadable, match=r"pickled objects|several arrays"):
            reading.npy(tmp_path / "one.npy", "one")


def npz_with(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", content)
    return file.getvalue()


def npy_of(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


BROKEN = {
    "no archive": b"text",
    "cut": npz_with(npy_of(np.arange(99)))[:-30],
    "a short member": npz_with(npy_of(np.arange(99))[:-8]),
    "no array": npz_with(b"text"),
    "objects": npz_with(npy_of(np.array([{}, []], object), allow_pickle=True)),
    "a pickle": pickle.dumps({"a": 1}),
    "a huge shape": npz_with(npy_of(np.zeros((11, 10))).replace(b"(11, 10)", b"(10**15,)")),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_archive_is_refused_in_a_sentence(tmp_path, kind):
    path = tmp_path / "a.npz"
    path.write_bytes(BROKEN[kind])
    with pytest.raises(reading.Unreadable, match=r"a\.npz cannot be read as arrays: .*anew\.$"):
        array_of(path, "a")


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(10**6))
    monkeypatch.setattr(reading, "free_memory", lambda: 10**6)
    with pytest.raises(reading.Unreadable, match="expand to 8,000,128, more than"):
        array_of(tmp_path / "a.npz", "a")


@pytest.mark.parametrize(
    ("read", "at_most"),
    [(reading.content, 2**30), (reading.text, 2**26), (reading.json_mapping, 2**24)],
)
def test_a_file_above_the_limit_is_not_read(tmp_path, read, at_most):
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, at_most + 1)
    with pytest.raises(reading.Unreadable, match=f"at most {at_most:,} are read"):
        read(path, "settings")


def test_texts_and_json(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a": 1}), encoding="utf-8-sig")
    assert reading.json_mapping(path, "settings") == {"a": 1}
    for content, message in (
        (b"[1]", r"it holds no mapping, but '\[1\]'"),
        (b"{", "Expecting"),
        (b"\xff\xfe\xff", "not in UTF-8"),
        (b"[" * 100_000, "recursion"),
    ):
        path.write_bytes(content)
        with pytest.raises(reading.Unreadable, match=message):
            reading.json_mapping(path, "settings")
    with pytest.raises(reading.Unreadable, match="it has 100,000 bytes, and at most 10 are read"):
        reading.content(path, "settings", at_most=10)
    with pytest.raises(reading.Unreadable, match="it is a folder"):
        reading.text(tmp_path, "settings")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent"):
        reading.text(tmp_path / "absent", "settings")


def test_the_guard_lets_bugs_pass():
    with pytest.raises(AttributeError), reading.guard("a", "a file"):
        raise AttributeError
    with pytest.raises(reading.Unreadable), reading.guard("a", "a file", library=True):
        raise AttributeError


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("first", "second"):
        with writing.replacing(path) as new:
            new.write_text(text)
    os.chmod(path, 0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(KeyError):
        half_of(writing.replacing(link))
    assert path.read_text() == "second"
    with writing.replacing(link) as new:
        new.write_text("third")
    assert link.is_symlink()
    assert path.read_text() == "third"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "link"]


def test_a_folder_is_replaced_together(tmp_path):
    folder = tmp_path / "new" / "report"
    with writing.staged(folder) as new:
        (new / "a").write_text("1")
        (new / "figures" / "small").mkdir(parents=True)
        (new / "figures" / "small" / "b").write_text("1")
    with pytest.raises(KeyError):
        half_of(writing.staged(folder), "a")
    assert (folder / "a").read_text() == "1"
    with writing.staged(folder) as new:
        (new / "a").write_text("3")
    assert (folder / "a").read_text() == "3"
    assert (folder / "figures" / "small" / "b").read_text() == "1"
    assert sorted(each.name for each in folder.iterdir()) == ["a", "figures"]
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"the report cannot be written to .*file.*: "):
        half_of(writing.staged(tmp_path / "file" / "below"), "a")


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path):
    for name, hours in ((".old.partial", 25), (".new.partial", 23)):
        (tmp_path / name / "half").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - 3600 * hours,) * 2)
    with writing.staged(tmp_path) as new:
        (new / "half").touch()
    assert sorted(each.name for each in tmp_path.iterdir()) == [".new.partial", "half"]


def test_programs_of_a_processor_are_not_for_one_of_other_abilities(tmp_path):
    names = []
    for flags in ("MHz : 2\nflags : avx", "MHz : 3\nflags : avx", "flags : avx2", "Features : fp"):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
        names.append(writing.processor(tmp_path / "cpuinfo"))
    assert names[0] == names[1]
    assert len({*names, writing.processor(tmp_path / "none")}) == 4


def test_programs_are_kept_where_the_user_says_or_jax_or_in_the_cache(tmp_path, monkeypatch):
    config = types.SimpleNamespace(jax_compilation_cache_dir=None)
    config.update = functools.partial(setattr, config)
    monkeypatch.setattr(writing, "jax", types.SimpleNamespace(config=config))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "calib_jax" / "compiled" / writing.processor()
    given = tmp_path / "new" / "given"
    # The fourth call finds the folder of the third one configured, and the last one its folder.
    for argument, place in (
        (None, folder),
        ("", None),
        (given, given),
        (None, given),
        (folder,) * 2,
    ):
        assert writing.keep_programs(argument and str(argument)) == place
        assert config.jax_compilation_cache_dir == (place and str(place))
        assert place is None or place.is_dir()
    assert config.jax_persistent_cache_min_compile_time_secs == 0.1
    (tmp_path / "file").touch()
    assert writing.keep_programs(str(tmp_path / "file")) is None


def test_a_value_is_outside_its_interval_by_more_than_rounding():
    for distance, mark in ((2.1e-6, texts.MARK), (2e-6, ""), (1.9e-6, ""), (np.nan, "")):
        for value in (0.5 - distance, 1.0 + distance):
            assert texts.mark(value, 0.5, 1.0) == mark
    assert texts.mark(2.0, None, 1.0) == texts.mark(2.0, 0.5, None) == ""
    assert texts.reasons([(0.7, 0.5, 1.0), (0.2, 0.5, 1.0), (2.0, 0.5, 1.0)]) == [texts.REASON]


def test_a_backslash_is_literal_and_a_table_may_have_no_heading():
    assert texts.in_markdown_cell(r"\* a") == r"\\* a"
    assert texts.csv_lines([{"a": 1}], ["a"], header=False) == "1\n"
