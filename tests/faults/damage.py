"""Damaged files: a flipped bit or a cut in every file of the folder of a run."""

import random

from tests.faults.kinds import EVALUATION, ONE_SEED
from tests.faults.table import Row


def flip(content, chance):
    """Flip one bit."""
    place = chance.randrange(len(content))
    return (
        content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
    )


def cut(content, chance):
    """Cut the end off."""
    return content[: chance.randrange(len(content))]


def damaged(place, kind, whole, change, files):
    """Damage one file after another, each in a copy of a folder, and give the command again."""
    row = Row(f"{change.__doc__.rstrip('.').lower()} in a file, then resume: {kind.name}")
    chance = random.Random(f"{kind.name} {change.__name__}")
    for name in files:
        folder = place.new(kind, copy_of=whole)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(change(content, chance))
        run = place.start(kind, folder)
        # An evaluation does not mend the files of the training.
        of_training = kind.prepare and (place.whole(kind.prepare).folder / name).exists()
        apart = str(name) if of_training else ""
        outcome, note = place.judge(row, kind, folder, run, apart=apart)
        if outcome == "wrong" and kind is EVALUATION and "is damaged and skipped" in run.output():
            outcome = "refused"  # the weights of the checkpoint before, as the report states
        row.add(outcome, f"{name}: {note}")
    return row


def files_in(folder, share, chance):
    """List the files of a run, and a share of the files in its two newest checkpoints."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    names = [path.relative_to(folder) for path in paths]
    newest = sorted((path.name for path in (folder / "checkpoints").iterdir()), key=int)[-2:]
    inside = [name for name in names if name.parts[0] == "checkpoints" and name.parts[1] in newest]
    beside = [n for n in names if n.parts[0] != "checkpoints" and not n.name.startswith(".lock")]
    chosen = lambda some: chance.sample(some, max(1, round(share * len(some))))  # noqa: E731
    return sorted([*chosen(beside), *chosen(inside)])


def rows(place, scale):
    """Yield the rows of this family; `scale` is the share of the files."""
    chance = random.Random("files")
    for kind in (ONE_SEED, EVALUATION):
        whole = place.half(kind) if kind is ONE_SEED else place.whole(kind).folder
        for change in (flip, cut):
            yield damaged(place, kind, whole, change, files_in(whole, scale, chance))
