"""The lock of a folder: one process, on systems with and without locks, in a folder that stays."""

import errno
import os
import subprocess
import sys
import types

import pytest

from calib_jax import train
from calib_jax.train.folder import journal, lock
from calib_jax.train.folder.files import CannotWrite
from tests.selection import every_case
from tests.train.test_loop import run


def flock_that_raises(monkeypatch, number):
    def flock(file, kind):
        raise OSError(number, os.strerror(number))

    system = types.SimpleNamespace(flock=flock, LOCK_EX=2, LOCK_NB=4)
    monkeypatch.setattr(lock, "fcntl", system)


@pytest.mark.parametrize("number", [errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES])
def test_a_lock_that_another_process_holds_is_refused(tmp_path, monkeypatch, number):
    flock_that_raises(monkeypatch, number)
    with pytest.raises(train.InUse, match="is in use by another process"), lock.only_one(tmp_path):
        pass


@every_case
@pytest.mark.parametrize(
    "number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EIO, errno.EINVAL]
)
def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, number):
    flock_that_raises(monkeypatch, number)
    with (
        pytest.warns(UserWarning, match=f"cannot be locked \\({os.strerror(number)}\\): take care"),
        lock.only_one(tmp_path) as claim,
    ):
        claim.check()


def test_the_library_is_imported_on_a_system_without_locks(tmp_path):
    program = (
        "import sys, warnings, pathlib; sys.modules['fcntl'] = None; from calib_jax import train;"
        " from calib_jax.train.folder import lock\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    with lock.only_one(pathlib.Path(sys.argv[1])): pass\n"
        "print(caught[0].message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    assert "cannot be locked (this system has no locks of files)" in done.stdout


def remove(folder):
    (folder / lock.TRAINING).unlink()


def replace(folder):
    """As a user does who moves a run away and starts another one in its place."""
    folder.rename(folder.with_name("moved"))
    folder.mkdir()
    (folder / lock.TRAINING).write_text("process 1")
    (folder / journal.ROWS).write_text('{"step": 1}\n')


@pytest.mark.parametrize("change", [remove, replace])
def test_a_run_writes_nothing_into_a_folder_that_is_no_longer_its_own(tmp_path, change):
    folder = tmp_path / "run"

    class Writer:
        def __init__(self, folder, config):
            self.folder, self.changed = folder, False

        def write(self, step, row):
            if not self.changed:
                change(self.folder)
                self.after = sorted(self.folder.iterdir())
            self.changed = True

        def close(self):
            pass

    made = []

    def make(folder, config):
        made.append(Writer(folder, config))
        return made[-1]

    with pytest.raises(CannotWrite, match="run was removed or replaced while this process used it"):
        run(folder, writers=[make])
    assert sorted(folder.iterdir()) == made[0].after
    if change is replace:
        assert (folder / journal.ROWS).read_text() == '{"step": 1}\n'
