"""Two trainers in a folder, clocks, file systems without locks, changed data, NaN and memory."""

import dataclasses
import json
import random
import re
import shutil

import numpy as np
from PIL import Image

from tests.faults.ends import end_of
from tests.faults.kinds import (
    EVALUATION,
    MAP,
    NETWORK,
    ONE_SEED,
    SEGMENTATION,
    STREAM,
    SWEEP,
    TEXT,
    VECTORS,
    Kind,
)
from tests.faults.table import Row


def two_trainers(place, kind, tries):
    """Start the same command twice, at random distances: one ends, and one is refused."""
    row = Row(f"two processes start in one folder: {kind.name}")
    chance, whole = random.Random(f"{kind.name} two"), place.whole(kind)
    for _ in range(tries):
        folder = place.new(kind)
        first = place.start(kind, folder)
        first.wait(chance.uniform(0, whole.seconds / 2))
        second = place.start(kind, folder)
        codes = [run.wait(300) for run in (first, second)]
        for run in (first, second):
            row.read(run)
        if not set(codes) <= {0, 2}:
            row.add("lost", f"exit codes {codes}: {first.output()[-300:]}{second.output()[-300:]}")
        elif why := place.difference(kind, folder):
            row.add("wrong", why)
        else:
            row.add("survived")
    return row


def jumping_clock(place, tries):
    """Set the wall clock to other times during a run that saves by the clock."""
    kind = dataclasses.replace(
        ONE_SEED,
        name="one seed, checkpoint_every_minutes=.001",
        arguments=lambda run, data: (
            *ONE_SEED.arguments(run, data),
            "--config.run.checkpoint_every_minutes=0.001",
        ),
    )
    row = Row(f"the clock jumps within two weeks, ten times a second: {kind.name}")
    for seed in range(tries):
        folder = place.new(kind)
        jumps = [("tests.faults.before:with_jumping_clock", seed)]
        row.add(*place.judge(row, kind, folder, place.start(kind, folder, before=jumps)))
    return row


def no_locks(place, kinds):
    """Let `flock` fail."""
    row = Row(f"a file system without flock: {', '.join(kind.name for kind in kinds)}")
    for kind in kinds:
        folder = place.new(kind)
        run = place.start(kind, folder, before=[("tests.faults.before:without_locks",)])
        row.add(*place.judge(row, kind, folder, run))
    return row


def other_pixels(folder):
    """Draw other images under the same names."""
    for path in (folder / "own_images").rglob("*.png"):
        pixels = np.asarray(Image.open(path))
        Image.fromarray(255 - pixels).save(path)
    for path in (folder / "camvid").glob("*/*.png"):
        if not path.parent.name.endswith("annot"):
            Image.fromarray(255 - np.asarray(Image.open(path))).save(path)


def other_labels(folder):
    """Change classes under the same names: label maps, rows of tables, and numbers of vectors."""
    for path in (folder / "camvid").glob("*annot/*.png"):
        Image.fromarray((np.asarray(Image.open(path)) + 1) % 12).save(path)
    path = folder / "own_texts.csv"
    path.write_text(re.sub(r"good$", "mixed", path.read_text(), count=3, flags=re.MULTILINE))
    for path in (folder / "banking77").glob("*_labels.npy"):
        np.save(path, np.load(path)[::-1])


def other_words(folder):
    """Write other texts with the same classes, and vectors of another encoder."""
    path = folder / "own_texts.csv"
    path.write_text(path.read_text().replace("It was", "was It", 20))
    for name in ("train", "validation", "test"):
        path = folder / "banking77" / f"{name}.npy"
        np.save(path, np.load(path)[:, ::-1])


def other_data(place, kind, change):
    """Change the data of a stopped run in place, and resume: the run must refuse."""
    row = Row(f"data that change under a run, {change.__name__.replace('_', ' ')}: {kind.name}")
    half = place.half(kind)  # with the data of every run
    saved = place.root / "data_saved"
    shutil.copytree(place.data, saved)
    try:
        change(place.data)
        folder = place.new(kind, copy_of=half)
        outcome, note = place.judge(row, kind, folder, place.start(kind, folder))
        # The network may ignore the change, so an equal end is no proof.
        row.add("refused" if outcome == "refused" else "wrong", f"{outcome} {note}")
    finally:
        shutil.rmtree(place.data)
        saved.rename(place.data)
    return row


def not_finite(place, tries):
    """Make the loss NaN at one step: the run fails by name, and its last checkpoint is good."""
    row = Row("the loss is NaN at a random step: one seed")
    chance = random.Random("nan")

    def kind(step):
        return Kind(
            "NaN",
            "train",
            lambda run, data: (
                "--config=configs/digits.py:tests.faults.tiny:nan_at",
                "--config.num_epochs=8",
                NETWORK,
                "--config.data.options.training_size=100",
                f"--config.loss.options.step={step}",
                f"--workdir={run}",
            ),
        )

    whole = place.new(ONE_SEED)
    run = place.start(kind(-1), whole)
    assert run.wait() == 0, run.output()
    rows = end_of(whole)["metrics.jsonl"]
    for _ in range(tries):
        step = chance.randrange(2, 16)
        folder = place.new(ONE_SEED)
        run = place.start(kind(step), folder)
        code = run.wait(300)
        row.read(run)
        logged = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        good = end_of(folder)["metrics.jsonl"] == rows[: step // 2] if logged else step < 2
        named = re.search("error: .*not finite|error: .*NaN|error: .*nan", run.output())
        if code == 1 and named and good and end_of(folder)["checkpoints/STEP"] <= step:
            row.add("refused")
        else:
            row.add("wrong", f"step {step}, code {code}, {len(logged)} rows: {run.output()[-500:]}")
    return row


def little_memory(place, kind, megabytes):
    """Limit the address space, and give the command again without the limit."""
    row = Row(f"address space limited (`ulimit -v`): {kind.name}")
    for more in megabytes:
        before = [("tests.faults.before:with_little_memory", more * 1_000_000)]
        place.hit(row, kind, place.new(kind), before=before)
    return row


def rows(place, scale):
    """Yield the rows of this family; `scale` is the share of the random tries."""
    for kind in (ONE_SEED, SWEEP, MAP, EVALUATION):
        yield two_trainers(place, kind, max(1, round(scale * 3)))
    yield jumping_clock(place, max(1, round(scale * 3)))
    yield no_locks(place, (ONE_SEED, SWEEP, MAP, EVALUATION))
    for change in (other_pixels, other_labels, other_words):
        kinds = {
            other_pixels: (STREAM, SEGMENTATION),
            other_labels: (SEGMENTATION, TEXT, VECTORS),
            other_words: (TEXT, VECTORS, MAP),
        }
        for kind in kinds[change]:
            yield other_data(place, kind, change)
    yield not_finite(place, max(1, round(scale * 4)))
    yield little_memory(place, ONE_SEED, (0, 100, 400, 1600, 6400))
