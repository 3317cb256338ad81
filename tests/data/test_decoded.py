"""The fingerprint of files, and the cache that is made anew when it changes."""

import os

import pytest

from calib_jax.core.files import reading
from calib_jax.data.images import decoded


def test_a_fingerprint_changes_with_name_size_and_time_of_every_file(tmp_path):
    def write(name, content=b"abc", nanoseconds=10**18):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, ns=(nanoseconds, nanoseconds))

    def fingerprint(*names):
        return decoded.fingerprint(tmp_path, names)

    write("a")
    write("b")
    first = fingerprint("a", "b")
    write("a")  # the same content at the same time
    assert fingerprint("a", "b") == first
    others = [fingerprint("a"), fingerprint("b", "a")]
    write("c")
    others.append(fingerprint("a", "c"))
    write("b", b"abcd")
    others.append(fingerprint("a", "b"))
    write("b", nanoseconds=10**18 + 1000)  # within the same second
    others.append(fingerprint("a", "b"))
    assert len({first, *others}) == 6


@pytest.mark.parametrize("name", ["absent", "n\0l"])
def test_a_file_that_is_missing_is_named(tmp_path, name):
    with pytest.raises(
        reading.Unreadable, match=f"{tmp_path} has no {name}: get the data set anew"
    ):
        decoded.fingerprint(tmp_path, [name])


def test_names_that_are_no_unicode_have_a_fingerprint(tmp_path):
    name = os.fsdecode(b"\xff.png")
    (tmp_path / name).write_bytes(b"")
    assert len(decoded.fingerprint(tmp_path, [name])) == 64
