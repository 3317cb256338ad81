"""Every reader of files that others wrote, before the same hundred broken ones."""

import pathlib

import pytest

from tests import broken
from tests.memory import peak
from tests.readers import FORMATS, MOST_MEMORY, Format, judged


def remove(path):
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def outcomes(form: Format, folder: pathlib.Path, ways: broken.Ways | None = None) -> list[bool]:
    """Read all broken files of a format; the whole one is read before and after."""
    path = form.make(folder)
    whole = path.read_bytes()
    assert judged(form, path, "whole")
    before = peak(reset=True)
    right = []
    for how, put in broken.files(whole, form.inner, ways):
        remove(path)
        put(path)
        right.append(judged(form, path, how))
    assert peak() - before < MOST_MEMORY
    remove(path)
    path.write_bytes(whole)
    assert judged(form, path, "whole again")
    return right


@pytest.mark.parametrize("name", FORMATS)
def test_a_broken_file_is_read_or_named(name, tmp_path):
    right = outcomes(FORMATS[name], tmp_path)
    assert len(right) >= 70
    assert right.count(False) >= 20 or FORMATS[name].mends


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FORMATS)
def test_files_broken_at_random_are_read_or_named(name, seed, tmp_path):
    """Ten thousand in all: the seeds are the same everywhere, and named where one fails."""
    number = 150 if FORMATS[name].inner is None else 80
    assert len(outcomes(FORMATS[name], tmp_path, broken.at_random(number, seed))) >= number
