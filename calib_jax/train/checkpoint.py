"""Checkpoints: the whole train state and what the loop knows, written while training goes on.

A checkpoint holds arrays by their path (`params/Dense_0/kernel`) and one JSON object, `about`,
with a checksum of every array and of itself. It appears at once or not at all, so that a process
may be killed at any moment. One that was damaged later is noticed, by the checksums of its files
(`checkpoints.json`, beside the folder) or by those inside it, and the one before is taken.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from calib_jax.core import reading
from calib_jax.core.types import PyTree
from calib_jax.train import files, quiet

Leaves = dict[tuple[str, ...], np.ndarray]

CHECKSUM = "checksum"  # of the JSON object that it stands in


class Saved(NamedTuple):
    """A checkpoint that was read."""

    state: PyTree
    about: dict[str, Any]


class NoCheckpoint(LookupError):
    """There is no checkpoint to read."""


class AnotherRun(ValueError):
    """A checkpoint does not fit what is trained."""


class CannotSave(OSError):
    """A checkpoint could not be written; those before it are as they were."""


class Checkpoints:
    """The checkpoints of one folder, by optimiser step.

    Args:
      folder: where; made if it is not there.
      keep: how many of the newest are kept.
      read_only: change nothing there, so that a run that is going on is not disturbed.
    """

    def __init__(self, folder: Path, *, keep: int = 2, read_only: bool = False) -> None:
        import orbax.checkpoint as ocp

        quiet.silence()
        self._folder = folder
        self._args = ocp.args
        self._policy = _Keep(keep)
        self._damaged: set[int] = set()
        self._saving: int | None = None
        self._failed = False
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                create=False,
                cleanup_tmp_directories=not read_only,
                read_only=read_only,
                multiprocessing_options=_alone(),
            ),
        )

    @property
    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, ascending."""
        return sorted(set(self._manager.all_steps()) - self._damaged)

    def newest_on_disk(self) -> int | None:
        """Look up the newest step whose folder is there and not known to be damaged."""
        there = [step for step in self.steps if (self._folder / str(step)).is_dir()]
        return max(there, default=None)

    def save(
        self, state: PyTree, about: Mapping[str, Any], step: int, *, kept: Collection[int] = ()
    ) -> None:
        """Begin to write; `wait` says when it is safe.

        Args:
          state: arrays on the host that nobody changes meanwhile.
          about: JSON.
          step: its name.
          kept: steps that are kept beside the newest ones.
        """
        leaves = _by_path(state)
        checksums = {"/".join(path): _checksum(leaf) for path, leaf in leaves.items()}
        whole = {**about, "checksums": checksums}
        self._policy.also = set(kept)
        try:
            self._saving = step
            self._check_room(leaves)
            # A damaged one that is newer would keep this one from being saved at all.
            for later in [one for one in self._damaged if one >= step]:
                self._manager.delete(later)
                self._damaged.discard(later)
            self._manager.save(
                step,
                args=self._args.Composite(
                    state=self._args.StandardSave(traverse_util.unflatten_dict(leaves)),
                    about=self._args.JsonSave({**whole, CHECKSUM: _checksum_of_json(whole)}),
                ),
            )
        except Exception as error:
            raise self._cannot_save(error) from error

    def wait(self) -> None:
        """Wait until what was begun is on the disk."""
        try:
            self._manager.wait_until_finished()
            if self._saving is not None:
                self._note_files(self._saving)
        except files.CannotWrite:  # the checkpoint itself is whole
            self._failed = True
            raise
        except Exception as error:
            raise self._cannot_save(error) from error
        self._saving = None

    def check_room(self, state: PyTree) -> None:
        """Refuse what a checkpoint would have no room for, before anything is trained."""
        try:
            self._check_room(_by_path(state))
        except OSError as error:
            raise CannotSave(
                f"a checkpoint could not be written to {self._folder} ({_why(error)}): make room"
                " there, or choose another folder."
            ) from error

    def _check_room(self, leaves: Leaves) -> None:
        need = sum(leaf.nbytes for leaf in leaves.values())
        free = shutil.disk_usage(self._folder).free
        if need > free:
            raise OSError(
                errno.ENOSPC, f"it needs {need / 1e6:.3g} MB, and {free / 1e6:.3g} MB are free"
            )

    def latest(self, template: PyTree, *, say: Callable[[str], None] = warnings.warn) -> Saved:
        """Read the newest checkpoint that is whole.

        Args:
          template: a tree of the structure, shapes and dtypes that are wanted.
          say: is told which one is damaged.
        """
        step, leaves, about = self._newest(say)
        return Saved(_as_template(template, leaves, self._folder / str(step)), about)

    def mend(self, step: int) -> list[str]:
        """Write the checksums of a checkpoint's files anew if theirs are damaged; say so.

        Args:
          step: of one that was read, so that the checksums inside it are right.
        """
        try:
            self._read_sums()
        except FileNotFoundError:
            return []
        except reading.Unreadable as error:
            aside = files.set_aside(self._sums)
            self._note_files(step)
            why = reading.reason(error.__cause__ or error)
            return [f"{self._sums.name}: {why}, kept as {aside}, restored from the checkpoint"]
        return []

    def read(self, template: PyTree, step: int) -> Saved:
        """Read the checkpoint of one step."""
        leaves, about = self._one(step)
        return Saved(_as_template(template, leaves, self._folder / str(step)), about)

    def variables(
        self, step: int | None = None, *, say: Callable[[str], None] = warnings.warn
    ) -> PyTree:
        """Read the variables that are evaluated, whatever network, loss and optimiser they are of.

        Args:
          step: of the checkpoint; the newest that is whole if None.
          say: is told which one is damaged.

        Returns:
          `{"params": ..., "batch_stats": ...}`, the moving averages if there are some.
        """
        leaves = self._newest(say)[1] if step is None else self._one(step)[0]
        averaged = any(path[0] == "average" for path in leaves)
        params = ("average", "0") if averaged else ("params",)
        others = ("average", "1") if averaged else ("model_state",)
        found = {}
        for path, leaf in leaves.items():
            if path[: len(params)] == params:
                found["params", *path[len(params) :]] = leaf
            elif path[: len(others)] == others:
                found[path[len(others) :]] = leaf
        return traverse_util.unflatten_dict(found)

    def about(self) -> dict[str, Any]:
        """Read what the loop knew at the newest checkpoint of which that can be read."""
        for step in reversed(self.steps):
            with contextlib.suppress(Exception):
                self._verify(step)
                items = self._args.Composite(about=self._args.JsonRestore())
                about = _verified(self._manager.restore(step, args=items)["about"])
                return {key: value for key, value in about.items() if key != "checksums"}
        raise self._nothing(len(self.steps))

    def close(self) -> None:
        """End the threads that write."""
        try:
            self._manager.close()
        except Exception as error:  # of a checkpoint that was begun; it may have been said already
            if not self._failed:
                raise self._cannot_save(error) from error

    @property
    def _sums(self) -> Path:
        return self._folder.with_suffix(".json")

    def _known(self) -> dict[str, dict[str, int]]:
        """Read the checksums of the files of every checkpoint; a damaged file knows none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return self._read_sums()
        return {}

    def _read_sums(self) -> dict[str, dict[str, int]]:
        with reading.guard(self._sums, "a file of checksums"):
            found = _verified(reading.json_mapping(self._sums, "a file of checksums"))
        return {step: sums for step, sums in found.items() if isinstance(sums, dict)}

    def _files(self, step: int) -> dict[str, int]:
        root = self._folder / str(step)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): zlib.crc32(path.read_bytes()) for path in files}

    def _note_files(self, step: int) -> None:
        """Write down what the files of a checkpoint hold; forget those that are gone."""
        known = self._known()
        kept = {str(one): known[str(one)] for one in self.steps if str(one) in known}
        sums: dict[str, Any] = {**kept, str(step): self._files(step)}
        files.replace(self._sums, json.dumps({**sums, CHECKSUM: _checksum_of_json(sums)}) + "\n")

    def _verify(self, step: int) -> None:
        """Look at the files before the reader does, whose own errors are long."""
        noted = self._known().get(str(step))
        if noted is None:  # killed before they were noted: the arrays have checksums, too
            return
        found = self._files(step)
        for name in {**noted, **found}:
            if name not in found:
                raise ValueError(f"its file {name} is missing.")
            if name in noted and noted[name] != found[name]:
                raise ValueError(f"its file {name} is not what was saved.")

    def _read(self, step: int) -> tuple[Leaves, dict[str, Any]]:
        self._verify(step)
        found = self._manager.restore(
            step,
            args=self._args.Composite(
                state=self._args.StandardRestore(), about=self._args.JsonRestore()
            ),
        )
        about = _verified(found["about"])
        leaves = {
            path: np.asarray(leaf)
            for path, leaf in traverse_util.flatten_dict(found["state"]).items()
        }
        checksums = about.pop("checksums")
        actual = {"/".join(path): _checksum(leaf) for path, leaf in leaves.items()}
        if actual != checksums:
            wrong = sorted(set(actual.items()) ^ set(checksums.items()))
            raise ValueError(f"{wrong[0][0]} is not what was saved.")
        return leaves, about

    def _newest(self, say: Callable[[str], None]) -> tuple[int, Leaves, dict[str, Any]]:
        """Read the newest checkpoint that is whole."""
        steps = self.steps
        for step in reversed(steps):
            try:
                return step, *self._read(step)
            except Exception as error:
                say(
                    f"checkpoint {step} in {self._folder} is damaged and left aside:"
                    f" {_first_line(error)}"
                )
                self._damaged.add(step)
        raise self._nothing(len(steps))

    def _one(self, step: int) -> tuple[Leaves, dict[str, Any]]:
        """Read the checkpoint of one step, or say why that cannot be."""
        if step not in self.steps:
            known = ", ".join(map(str, self.steps)) or "none"
            raise NoCheckpoint(f"there is no checkpoint {step} in {self._folder}; it has {known}.")
        try:
            return self._read(step)
        except Exception as error:
            raise NoCheckpoint(
                f"checkpoint {step} in {self._folder} is damaged: {_first_line(error)}"
            ) from error

    def _nothing(self, count: int) -> NoCheckpoint:
        if count == 0:
            return NoCheckpoint(f"there is no checkpoint in {self._folder}.")
        return NoCheckpoint(
            f"none of the {count} checkpoints in {self._folder} can be read: move the folder away"
            " to begin anew."
        )

    def _cannot_save(self, error: Exception) -> CannotSave:
        self._failed = True
        good = [step for step in self.steps if step != self._saving]
        rest = f"checkpoint {good[-1]} there is good" if good else "there is none yet"
        return CannotSave(
            f"checkpoint {self._saving} could not be written to {self._folder} ({_why(error)});"
            f" {rest}: make room there, and the same command goes on."
        )


def _alone() -> Any:
    """Keep orbax from waiting for other processes: one of them writes, and they do other things."""
    import orbax.checkpoint as ocp

    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    this = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=this, active_processes={this})


class _Keep:
    """What is not deleted: the newest few, and some that the loop names."""

    def __init__(self, newest: int) -> None:
        self._newest = newest
        self.also: set[int] = set()

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [one.step for one in checkpoints]
        newest = set(sorted(steps)[-self._newest :])
        return [step in newest or step in self.also for step in steps]


def _by_path(tree: PyTree) -> dict[tuple[str, ...], np.ndarray]:
    return {tuple(_words(path)): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def _words(path: Any) -> list[str]:
    return [jax.tree_util.keystr((key,), simple=True) for key in path]


def _as_template(
    template: PyTree, leaves: Mapping[tuple[str, ...], np.ndarray], where: Path
) -> PyTree:
    wanted, structure = jax.tree.flatten_with_path(template)
    names = [tuple(_words(path)) for path, _ in wanted]
    if set(names) != set(leaves):
        odd = "/".join(sorted(set(names) ^ set(leaves))[0])
        raise AnotherRun(f"{where} holds another network, optimiser or loss: {odd} differs.")
    for name, (_, leaf) in zip(names, wanted, strict=True):
        found = leaves[name]
        if found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise AnotherRun(
                f"{where} holds another network, optimiser or loss: {'/'.join(name)} is"
                f" {found.dtype}{list(found.shape)} there and {leaf.dtype}{list(leaf.shape)} here."
            )
    return jax.tree.unflatten(structure, [leaves[name] for name in names])


def _checksum(leaf: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(leaf).tobytes())


def _checksum_of_json(value: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _verified(found: Any) -> dict[str, Any]:
    """Take the checksum of a JSON object from it; earlier versions wrote none."""
    if not isinstance(found, dict):
        raise ValueError("it holds no mapping.")
    rest = {key: value for key, value in found.items() if key != CHECKSUM}
    if CHECKSUM in found and found[CHECKSUM] != _checksum_of_json(rest):
        raise ValueError("what it says is not what was saved.")
    return rest


_SYSTEM_ERROR = r"os_error_code='(\d+)'"


def _why(error: BaseException) -> str:
    """Say in a few words why something could not be written, in orbax's long errors as well."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if code := re.search(_SYSTEM_ERROR, str(error)):
        return os.strerror(int(code[1]))
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the keys in which two nested configs differ, with both values.

    >>> differences({"lr": 0.1, "loss": {"gamma": 3}}, {"lr": 0.1, "loss": {"gamma": 5}})
    ['loss.gamma: 3 before, 5 now']
    """
    one, other = (traverse_util.flatten_dict(dict(part), sep=".") for part in (before, now))
    return [
        f"{key}: {one.get(key, 'nothing')} before, {other.get(key, 'nothing')} now"
        for key in sorted(set(one) | set(other))
        if one.get(key, ...) != other.get(key, ...)
    ]
