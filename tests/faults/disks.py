"""Full disks and folders that cannot be written: of runs, sweeps, the map and evaluations."""

import contextlib
import os
import random
import subprocess

from tests.faults.kinds import EVALUATION, MAP, ONE_SEED, SWEEP
from tests.faults.table import Row

PAGE = 4096  # bytes of a block of a tmpfs


def pages_in(folder):
    """Count the blocks that the files and the folders take."""
    return sum(-(-max(path.stat().st_size, 1) // PAGE) for path in folder.rglob("*"))


@contextlib.contextmanager
def disk(place, pages):
    """Mount a disk of so many blocks; yield its folder and a function that makes room."""
    point = place.root / f"disk_{len(list(place.root.glob('disk_*')))}"
    point.mkdir()
    size = f"size={pages * PAGE}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", point], check=True)
    more = ["mount", "-o", "remount,size=256M", point]
    try:
        yield point, lambda: subprocess.run(more, check=True)
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


def full(place, kind, tries):
    """Run on disks larger than the folder at the start and smaller than the folder at the end."""
    row = Row(f"full disk: {kind.name}")
    chance = random.Random(f"{kind.name} disk")
    begin = pages_in(place.whole(kind.prepare).folder) if kind.prepare else 0
    end = pages_in(place.whole(kind).folder)
    for _ in range(tries):
        with disk(place, chance.randint(begin + 2, end)) as (point, make_room):
            place.hit(row, kind, place.new(kind, inside=point), mend=make_room)
    return row


def limited(place, kind, tries):
    """Limit the size of files to one byte less than one of the files of the run has."""
    row = Row(f"files limited in size (`ulimit -f`): {kind.name}")
    paths = sorted(path for path in place.whole(kind).folder.rglob("*") if path.is_file())
    sizes = sorted({path.stat().st_size for path in paths if path.stat().st_size > 1})
    for size in random.Random(f"{kind.name} files").sample(sizes, tries):
        before = [("tests.faults.before:with_small_files", size - 1)]
        place.hit(row, kind, place.new(kind), before=before)
    return row


def read_only(place, kind):
    """Take away the right to write into a folder: of the run, one inside, and the one around."""
    row = Row(f"read-only folders: {kind.name}")
    half = place.whole(kind.prepare).folder if kind.prepare else place.half(kind)
    for name in (".", "checkpoints", ".."):
        around = place.new(kind, copy_of=None)
        around.mkdir(exist_ok=True)
        folder = place.new(kind, copy_of=None if name == ".." else half, inside=around)
        closed = folder / name if name != ".." else around
        os.chmod(closed, 0o555)
        before = [("tests.faults.before:as_a_user",)]
        place.hit(row, kind, folder, before=before, mend=lambda c=closed: os.chmod(c, 0o755))
    return row


def rows(place, scale):
    """Yield the rows of this family; a disk of its own needs the right to mount one."""
    for kind in (ONE_SEED, SWEEP, MAP, EVALUATION):
        if os.geteuid() == 0:
            yield full(place, kind, max(1, round(scale * 8)))
    for kind in (ONE_SEED, EVALUATION):
        yield limited(place, kind, max(1, round(scale * 6)))
    yield read_only(place, ONE_SEED)
