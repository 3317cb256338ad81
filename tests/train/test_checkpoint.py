"""Checkpoints: what is read is what was saved, and what is damaged is noticed."""

import contextlib
import resource
import shutil
import signal
import types
import warnings

import jax
import numpy as np
import optax
import pytest

from calib_jax import losses, train
from calib_jax.train.folder import leaves_by_path
from calib_jax.train.folder.checkpoint import CannotSave, Checkpoints, NoCheckpoint
from tests.train import tasks

OBJECTIVE = losses.objective("adafocal")


def host_state(seed=0, tx=None):
    return jax.tree.map(np.asarray, tasks.state_of(OBJECTIVE, tx, seed=seed))


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path / "checkpoints", keep=2)
    yield opened
    opened.close()


def save(checkpoints, *steps, state=None, **options):
    for step in steps:
        checkpoints.save(host_state() if state is None else state, {"s": step}, step, **options)
        checkpoints.wait()


def damage(folder, step):
    """Turn over a bit in the middle of every file that holds arrays."""
    files = [f for f in (folder / "checkpoints" / str(step)).rglob("*") if f.parent.name == "d"]
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)


def test_what_is_read_is_what_was_saved(checkpoints):
    state = host_state(seed=5)
    about = {"config": {"rate": 0.1, "name": "x"}, "third": 1 / 3}
    checkpoints.save(state, about, 7)
    checkpoints.wait()
    saved = checkpoints.restore(host_state())
    assert saved.about == about
    assert jax.tree.structure(saved.state) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(saved.state), jax.tree.leaves(state), strict=True):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def test_nothing_saved_is_nothing(checkpoints):
    assert checkpoints.steps == []
    with pytest.raises(NoCheckpoint, match="there is no checkpoint in"):
        checkpoints.restore(host_state())
    with pytest.raises(NoCheckpoint, match="there is no checkpoint in"):
        checkpoints.about()
    with pytest.raises(NoCheckpoint, match=r"no checkpoint 3 in .*; it has none"):
        checkpoints.restore(host_state(), 3)


def test_the_newest_and_the_named_are_kept(checkpoints):
    save(checkpoints, 1, 2, 3, 4, 5, preserve={2})
    assert checkpoints.steps == [2, 4, 5]
    assert checkpoints.restore(host_state(), 2).about == {"s": 2}


# A reader that fails leaves futures behind, which complain when they are collected.
ignore_the_rest = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@ignore_the_rest
def test_a_damaged_checkpoint_falls_back_to_the_one_before(checkpoints, tmp_path):
    save(checkpoints, 1, 2)
    damage(tmp_path, 2)
    with pytest.warns(UserWarning, match="checkpoint 2 in .* is damaged and skipped"):
        saved = checkpoints.restore(host_state())
    assert saved.about == {"s": 1}
    save(checkpoints, 2)  # the run comes to this step again
    assert checkpoints.restore(host_state()).about == {"s": 2}


@ignore_the_rest
def test_a_damaged_checkpoint_does_not_keep_earlier_steps_from_being_saved(tmp_path):
    """Stopped once more, before the run has come to the damaged step again."""
    folder = tmp_path / "checkpoints"
    with contextlib.closing(Checkpoints(folder, keep=1)) as first:
        save(first, 10, 30, preserve={10})
    damage(tmp_path, 30)
    with contextlib.closing(Checkpoints(str(folder), keep=1)) as again:
        again.restore(host_state(), warn=lambda text: None)
        save(again, 20)
        assert again.steps == [20]
    with contextlib.closing(Checkpoints(folder, keep=1)) as reopened:
        assert reopened.restore(host_state()).about == {"s": 20}


@ignore_the_rest
def test_no_checkpoint_that_can_be_read_is_an_error_and_not_a_fresh_start(checkpoints, tmp_path):
    save(checkpoints, 1)
    damage(tmp_path, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(NoCheckpoint, match=r"none of the 1 checkpoints in .* can be read"):
            checkpoints.restore(host_state())


def flip(rng, content):
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)


def overwrite(rng, content):
    start = rng.integers(len(content))
    content[start : start + 512] = rng.bytes(len(content[start : start + 512]))


def zero(rng, content):
    start = rng.integers(len(content))
    content[start : start + 512] = bytes(len(content[start : start + 512]))


def truncate(rng, content):
    del content[rng.integers(len(content)) :]


def extend(rng, content):
    content += rng.bytes(1 + rng.integers(64))


def damage_at_random(rng, folder):
    """Damage one file, or remove files as if a copy had stopped in the middle; say how."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if rng.random() < 0.2:
        removed = rng.choice(paths, size=rng.integers(1, len(paths)), replace=False)
        for path in removed:
            path.unlink()
        return "removed", removed
    change, path = rng.choice([flip, overwrite, zero, truncate, extend]), rng.choice(paths)
    content = bytearray(path.read_bytes())
    change(rng, content)
    path.write_bytes(content)
    return change, path


def equal(a, b):
    same = lambda x, y: (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())  # noqa: E731
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(jax.tree.map(same, a, b))


@ignore_the_rest
@pytest.mark.parametrize(("count", "seed"), [(20, 0), pytest.param(600, 1, marks=pytest.mark.slow)])
def test_any_damage_is_harmless_or_noticed(tmp_path, capfd, count, seed):
    """Every checkpoint is restored exactly, or refused and the one before is restored."""
    states = {step: host_state(seed=step) for step in (1, 2)}
    # An array of its own file, whose bytes orbax does not check.
    large = np.random.default_rng(0).random((60, 70))
    states[2] = states[2]._replace(params={**states[2].params, "large": large})
    whole = tmp_path / "whole"
    with contextlib.closing(Checkpoints(whole)) as checkpoints:
        for step, state in states.items():
            checkpoints.save(state, {"s": step, "nested": [1, 2.5, {"x": "y"}]}, step)
            checkpoints.wait()
    rng, refused = np.random.default_rng(seed), 0
    for number in range(count):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        done = damage_at_random(rng, folder / "2")
        with contextlib.closing(Checkpoints(folder, read_only=True)) as checkpoints:
            try:
                saved = checkpoints.restore(states[2], 2)
            except NoCheckpoint:
                refused += 1
                warned = []
                saved = checkpoints.restore(states[1], warn=warned.append)
                assert len(warned) == 1, done
                assert warned[0].startswith(f"checkpoint 2 in {folder} is damaged and skipped: ")
        step = saved.about["s"]
        assert saved.about == {"s": step, "nested": [1, 2.5, {"x": "y"}]}, done
        assert equal(saved.state, states[step]), done
        shutil.rmtree(folder)
    assert 0 < refused < count
    assert "Traceback" not in capfd.readouterr().err


def test_another_dtype_of_the_same_bytes_is_noticed():
    arrays = {("a",): np.arange(4, dtype=np.int32)}
    saved = leaves_by_path.checksums(arrays)
    assert leaves_by_path.changed(arrays, saved) == ""
    assert leaves_by_path.changed({("a",): arrays["a",].view(np.float32)}, saved) == "a"
    assert leaves_by_path.changed({("a",): arrays["a",].reshape(2, 2)}, saved) == "a"
    assert leaves_by_path.changed({}, saved) == "a"
    assert leaves_by_path.changed(arrays, {"a": 5}) == "a"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s._replace(params={**s.params, "more": np.ones(2)}), "params/more differs"),
        (
            lambda s: s._replace(params={**s.params, "out_bias": np.ones(9, np.float32)}),
            r"params/out_bias is float32\[5\] there and float32\[9\] here",
        ),
    ],
)
def test_another_network_is_named(checkpoints, change, message):
    save(checkpoints, 1)
    with pytest.raises(ValueError, match=message):
        checkpoints.restore(change(host_state()))


def test_another_optimiser_is_named(checkpoints):
    save(checkpoints, 1)
    with pytest.raises(ValueError, match="another network, optimizer or loss: opt_state"):
        checkpoints.restore(host_state(tx=optax.adam(0.1)))


@pytest.mark.filterwarnings("ignore")
def test_a_full_disk_leaves_the_checkpoint_before(checkpoints):
    save(checkpoints, 1)
    big = host_state()._replace(params={"w": np.random.default_rng(0).random(300_000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CannotSave, match=r"checkpoint 2 could not be written .*checkpoint 1"):
            save(checkpoints, 2, state=big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert checkpoints.restore(host_state()).about == {"s": 1}


def test_differences_name_both_values():
    before = {"lr": 0.1, "loss": {"name": "focal", "options": {"gamma": 3.0}}}
    now = {"lr": 0.1, "loss": {"name": "brier", "options": {}}}
    assert train.differences(before, now) == [
        "loss.name: focal before, brier now",
        "loss.options.gamma: 3.0 before, nothing now",
    ]
    assert train.differences(now, now) == []


def test_a_disk_without_room_is_noticed_before_anything_is_written(checkpoints, monkeypatch):
    save(checkpoints, 1)
    free = types.SimpleNamespace(free=1000)
    monkeypatch.setattr("calib_jax.train.folder.checkpoint.shutil.disk_usage", lambda folder: free)
    with pytest.raises(CannotSave, match=r"it needs .* MB, and 0.001 MB are free\): make room"):
        checkpoints.check_room(host_state())
    with pytest.raises(CannotSave, match=r"2 could not .* are free\); checkpoint 1 there is good:"):
        save(checkpoints, 2)
    assert checkpoints.steps == [1]
