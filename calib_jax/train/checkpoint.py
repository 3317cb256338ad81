"""Checkpoints: save and restore the train state and the loop's ledger, asynchronously.

A checkpoint holds arrays by path (`params/Dense_0/kernel`) and one JSON object, `about`, with a
checksum of every array and of itself. It is written atomically, so the process may be killed at any
time. Later damage is detected by the checksums of its files (`checkpoints.json`, beside the folder)
or by the checksums inside it; the previous checkpoint is then restored.
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

CHECKSUM = "checksum"  # the key of the checksum of its own JSON object


class Saved(NamedTuple):
    """A restored checkpoint."""

    state: PyTree
    about: dict[str, Any]


class NoCheckpoint(LookupError):
    """Raised when there is no checkpoint to read."""


class AnotherRun(ValueError):
    """Raised when a checkpoint does not match the train state."""


class CannotSave(OSError):
    """Raised when a checkpoint cannot be written; earlier ones are unchanged."""


class Checkpoints:
    """The checkpoints of one folder, by optimiser step.

    Args:
      folder: the folder; created if it does not exist.
      keep: the number of newest checkpoints to keep.
      read_only: change nothing in the folder, so that a run in progress is not disturbed.
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
        """The steps that have a checkpoint, in ascending order."""
        return sorted(set(self._manager.all_steps()) - self._damaged)

    def newest_on_disk(self) -> int | None:
        """Return the newest step whose folder exists and is not known to be damaged."""
        there = [step for step in self.steps if (self._folder / str(step)).is_dir()]
        return max(there, default=None)

    def save(
        self, state: PyTree, about: Mapping[str, Any], step: int, *, kept: Collection[int] = ()
    ) -> None:
        """Start writing a checkpoint; `wait` returns once it is on disk.

        Args:
          state: arrays on the host, which must not change before `wait` returns.
          about: a JSON object.
          step: the step, which names the checkpoint.
          kept: steps to keep besides the newest ones.
        """
        leaves = _by_path(state)
        checksums = {"/".join(path): _checksum(leaf) for path, leaf in leaves.items()}
        whole = {**about, "checksums": checksums}
        self._policy.also = set(kept)
        try:
            self._saving = step
            self._check_room(leaves)
            # orbax saves only steps newer than all existing ones, even if those are damaged.
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
        """Wait until the checkpoint in progress is on disk."""
        try:
            self._manager.wait_until_finished()
            if self._saving is not None:
                self._note_files(self._saving)
        except files.CannotWrite:  # only the checksum file failed
            self._failed = True
            raise
        except Exception as error:
            raise self._cannot_save(error) from error
        self._saving = None

    def check_room(self, state: PyTree) -> None:
        """Raise `CannotSave` before training if the disk has no room for a checkpoint."""
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
        """Restore the newest undamaged checkpoint.

        Args:
          template: a tree with the expected structure, shapes and dtypes.
          say: called with a message for each damaged checkpoint.
        """
        step, leaves, about = self._newest(say)
        return Saved(_as_template(template, leaves, self._folder / str(step)), about)

    def mend(self, step: int) -> list[str]:
        """Rewrite a damaged checksum file for one checkpoint, and return remarks for the log.

        Args:
          step: the step of a checkpoint whose internal checksums have been verified.
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
        """Restore the checkpoint of one step."""
        leaves, about = self._one(step)
        return Saved(_as_template(template, leaves, self._folder / str(step)), about)

    def variables(
        self, step: int | None = None, *, say: Callable[[str], None] = warnings.warn
    ) -> PyTree:
        """Restore the variables used in evaluation, without a template.

        Args:
          step: the step of the checkpoint; None restores the newest undamaged one.
          say: called with a message for each damaged checkpoint.

        Returns:
          `{"params": ..., "batch_stats": ...}`, from the moving averages if the state has any.
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
        """Read `about` from the newest checkpoint in which it is readable."""
        for step in reversed(self.steps):
            with contextlib.suppress(Exception):
                self._verify(step)
                items = self._args.Composite(about=self._args.JsonRestore())
                about = _verified(self._manager.restore(step, args=items)["about"])
                return {key: value for key, value in about.items() if key != "checksums"}
        raise self._nothing(len(self.steps))

    def close(self) -> None:
        """Stop the writer threads."""
        try:
            self._manager.close()
        except Exception as error:  # from a write in progress; `wait` may have raised it
            if not self._failed:
                raise self._cannot_save(error) from error

    @property
    def _sums(self) -> Path:
        return self._folder.with_suffix(".json")

    def _known(self) -> dict[str, dict[str, int]]:
        """Read the file checksums of every checkpoint; return none if the file is damaged."""
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
        """Save the file checksums of a checkpoint; drop those of deleted checkpoints."""
        known = self._known()
        kept = {str(one): known[str(one)] for one in self.steps if str(one) in known}
        sums: dict[str, Any] = {**kept, str(step): self._files(step)}
        files.replace(self._sums, json.dumps({**sums, CHECKSUM: _checksum_of_json(sums)}) + "\n")

    def _verify(self, step: int) -> None:
        """Verify the file checksums first, because orbax's own errors are long."""
        noted = self._known().get(str(step))
        if noted is None:  # killed before the sums were saved: `_read` checks the arrays
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
        """Read the newest undamaged checkpoint."""
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
        """Read the checkpoint of one step, or raise `NoCheckpoint` with the reason."""
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
    """Configure orbax not to synchronise with other processes, since only one process saves."""
    import orbax.checkpoint as ocp

    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    this = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=this, active_processes={this})


class _Keep:
    """An orbax preservation policy: keep the newest checkpoints and those in `also`."""

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
    """Verify and remove the checksum of a JSON object; earlier versions wrote none."""
    if not isinstance(found, dict):
        raise ValueError("it holds no mapping.")
    rest = {key: value for key, value in found.items() if key != CHECKSUM}
    if CHECKSUM in found and found[CHECKSUM] != _checksum_of_json(rest):
        raise ValueError("what it says is not what was saved.")
    return rest


_SYSTEM_ERROR = r"os_error_code='(\d+)'"


def _why(error: BaseException) -> str:
    """Return a short reason why a write failed, also from orbax's long errors."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if code := re.search(_SYSTEM_ERROR, str(error)):
        return os.strerror(int(code[1]))
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the keys in which two nested configs differ, with both values.

    >>> differences({"lr": 0.1, "loss": {"gamma": 3}}, {"lr": 0.1, "loss": {"gamma": 5}})
    ['loss.gamma: 3 before, 5 now']
    """
    one, other = (traverse_util.flatten_dict(dict(part), sep=".") for part in (before, now))
    return [
        f"{key}: {one.get(key, 'nothing')} before, {other.get(key, 'nothing')} now"
        for key in sorted(set(one) | set(other))
        if one.get(key, ...) != other.get(key, ...)
    ]
