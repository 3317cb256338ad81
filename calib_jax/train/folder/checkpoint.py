"""Checkpoints: save and restore the train state and the loop's ledger, asynchronously.

A checkpoint holds arrays by path (`params/Dense_0/kernel`) and one JSON object, `about`. Orbax
writes it atomically, so the process may be killed at any time, but it does not detect every later
damage. So `about` holds a checksum of every array and of itself: a checkpoint is restored exactly,
or it is rejected and the previous checkpoint is restored.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import re
import shutil
import sys
import traceback
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from calib_jax.core.types import PyTree
from calib_jax.train.folder import leaves_by_path
from calib_jax.train.folder.leaves_by_path import Leaves

# Seconds of patience with a checkpoint in progress. Orbax measures them with the wall clock, which
# jumps when a laptop wakes up or a clock is set; its own 20 minutes would then end the run.
PATIENCE = 10 * 365 * 86_400
CHECKSUM = "checksum"  # the key in `about` of the checksum of `about` itself


class Saved(NamedTuple):
    """A restored checkpoint."""

    state: PyTree
    about: dict[str, Any]


class NoCheckpoint(LookupError):
    """Raised when there is no checkpoint to read."""


class CannotSave(OSError):
    """Raised when a checkpoint cannot be written; earlier ones are unchanged."""


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints of one folder, by optimizer step; a `with` block closes them.

    Args:
      folder: the folder; created if it does not exist.
      keep: the number of newest checkpoints to keep.
      read_only: do not write into the folder, so that a run in progress is not disturbed.
    """

    def __init__(self, folder: Path | str, *, keep: int = 2, read_only: bool = False) -> None:
        import orbax.checkpoint as ocp

        _silence_orbax()
        self._folder = folder = Path(folder)
        self._args = ocp.args
        self._policy = _Policy(keep)
        self._damaged: set[int] = set()
        self._saving: int | None = None
        self._failed = False
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        processes = ocp.options.MultiprocessingOptions()
        if jax.process_count() > 1:  # only process 0 saves; orbax must not wait for the others
            this = jax.process_index()
            processes = ocp.options.MultiprocessingOptions(this, {this})
        self._manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                create=False,
                cleanup_tmp_directories=not read_only,
                read_only=read_only,
                async_options=ocp.AsyncOptions(
                    # Waiting for folders has a patience of its own, which cannot be set.
                    timeout_secs=PATIENCE,
                    create_directories_asynchronously=False,
                ),
                multiprocessing_options=processes,
            ),
        )

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""
        return self._folder

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in ascending order."""
        return sorted(set(self._manager.all_steps()) - self._damaged)

    def newest_on_disk(self) -> int | None:
        """Return the newest step whose folder exists and is not known to be damaged."""
        return max((s for s in self.steps if (self._folder / str(s)).is_dir()), default=None)

    def save(
        self, state: PyTree, about: Mapping[str, Any], step: int, *, preserve: Collection[int] = ()
    ) -> None:
        """Start writing a checkpoint; `wait` returns once it is on disk.

        Args:
          state: arrays on the host, which must not change before `wait` returns.
          about: a JSON object.
          step: the step, which names the checkpoint.
          preserve: steps to keep besides the newest ones.
        """
        leaves = leaves_by_path.of_tree(state)
        about = {**about, "checksums": leaves_by_path.checksums(leaves)}
        items = self._args.Composite(
            state=self._args.StandardSave(traverse_util.unflatten_dict(leaves)),
            about=self._args.JsonSave({**about, CHECKSUM: _checksum_of_json(about)}),
        )
        self._policy.preserved = preserve
        self._saving = step
        with self._saving_errors():
            self._check_room(leaves)
            # orbax saves only steps newer than all existing steps, even if these are damaged.
            for later in [other for other in self._damaged if other >= step]:
                self._manager.delete(later)
                self._damaged.discard(later)
            self._manager.save(step, args=items)

    def wait(self) -> None:
        """Wait until the checkpoint in progress is on disk."""
        with self._saving_errors():
            self._manager.wait_until_finished()
        self._saving = None

    def check_room(self, state: PyTree) -> None:
        """Raise `CannotSave` before training if the disk has no room for a checkpoint."""
        try:
            self._check_room(leaves_by_path.of_tree(state))
        except OSError as error:
            raise CannotSave(
                f"a checkpoint could not be written to {self._folder} ({_reason(error)}): make"
                " room there, or choose another folder."
            ) from error

    def restore(
        self,
        template: PyTree,
        step: int | None = None,
        *,
        warn: Callable[[str], None] = warnings.warn,
    ) -> Saved:
        """Restore a checkpoint.

        Args:
          template: a tree with the expected structure, shapes and dtypes.
          step: the step of the checkpoint; None restores the newest undamaged one.
          warn: called with a message for each damaged checkpoint that is skipped.
        """
        step, leaves, about = self._restored(step, warn)
        return Saved(leaves_by_path.as_template(template, leaves, self._folder / str(step)), about)

    def variables(
        self, step: int | None = None, *, warn: Callable[[str], None] = warnings.warn
    ) -> PyTree:
        """Restore the variables used in evaluation, without a template.

        Args:
          step, warn: as in `restore`.

        Returns:
          `{"params": ..., "batch_stats": ...}`, from the moving averages if the state has any.
        """
        _, leaves, _ = self._restored(step, warn)
        averaged = any(path[0] == "average" for path in leaves)
        params = ("average", "0") if averaged else ("params",)
        others = ("average", "1") if averaged else ("model_state",)
        variables = {}
        for path, leaf in leaves.items():
            if path[: len(params)] == params:
                variables["params", *path[len(params) :]] = leaf
            elif path[: len(others)] == others:
                variables[path[len(others) :]] = leaf
        return traverse_util.unflatten_dict(variables)

    def about(self) -> dict[str, Any]:
        """Read `about` from the newest checkpoint in which it is readable."""
        for step in reversed(self.steps):
            with contextlib.suppress(Exception):
                return self._about(step)[0]
        raise self._none_readable(len(self.steps))

    def close(self) -> None:
        """Stop the writer threads."""
        try:
            self._manager.close()
        except Exception as error:  # from a write in progress; `wait` may have raised it already
            if not self._failed:
                raise self._cannot_save(error) from error

    def __exit__(self, *_: object) -> None:
        self.close()

    def _about(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read the JSON object of a checkpoint, and the checksums of its arrays."""
        items = self._args.Composite(about=self._args.JsonRestore())
        about = self._manager.restore(step, args=items)["about"]
        if about.pop(CHECKSUM, None) != _checksum_of_json(about):
            raise ValueError("its JSON object is not what was saved.")
        return about, about.pop("checksums")

    def _read(self, step: int) -> tuple[Leaves, dict[str, Any]]:
        about, checksums = self._about(step)
        items = self._args.Composite(state=self._args.StandardRestore())
        state = self._manager.restore(step, args=items)["state"]
        leaves = {path: np.asarray(x) for path, x in traverse_util.flatten_dict(state).items()}
        if changed := leaves_by_path.changed(leaves, checksums):
            raise ValueError(f"{changed} is not what was saved.")
        return leaves, about

    def _restored(
        self, step: int | None, warn: Callable[[str], None]
    ) -> tuple[int, Leaves, dict[str, Any]]:
        """Read one checkpoint, or the newest undamaged one; raise `NoCheckpoint` if none can be."""
        steps = self.steps
        if step is not None and step not in steps:
            existing = ", ".join(map(str, steps)) or "none"
            raise NoCheckpoint(
                f"there is no checkpoint {step} in {self._folder}; it has {existing}."
            )
        for candidate in reversed(steps) if step is None else [step]:
            try:
                return candidate, *self._read(candidate)
            except Exception as error:
                damage = f"checkpoint {candidate} in {self._folder} is damaged"
                if step is not None:
                    raise NoCheckpoint(f"{damage}: {_first_line(error)}") from error
                warn(f"{damage} and skipped: {_first_line(error)}")
                self._damaged.add(candidate)
        raise self._none_readable(len(steps))

    def _none_readable(self, count: int) -> NoCheckpoint:
        if count == 0:
            return NoCheckpoint(f"there is no checkpoint in {self._folder}.")
        return NoCheckpoint(
            f"none of the {count} checkpoints in {self._folder} can be read: move the folder away"
            " to begin anew."
        )

    def _check_room(self, leaves: Leaves) -> None:
        needed = sum(leaf.nbytes for leaf in leaves.values())
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise OSError(
                errno.ENOSPC, f"it needs {needed / 1e6:.3g} MB, and {free / 1e6:.3g} MB are free"
            )

    @contextlib.contextmanager
    def _saving_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._cannot_save(error) from error

    def _cannot_save(self, error: Exception) -> CannotSave:
        self._failed = True
        intact = max((step for step in self.steps if step != self._saving), default=None)
        rest = "there is none yet" if intact is None else f"checkpoint {intact} there is good"
        return CannotSave(
            f"checkpoint {self._saving} could not be written to {self._folder} ({_reason(error)});"
            f" {rest}: make room there, and the same command resumes the run."
        )


class _Policy:
    """An orbax preservation policy: keep the newest checkpoints and the steps in `preserved`."""

    def __init__(self, newest: int) -> None:
        self._newest = newest
        self.preserved: Collection[int] = ()

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        newest = sorted(steps)[-self._newest :]
        return [step in newest or step in self.preserved for step in steps]


def _checksum_of_json(value: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _reason(error: BaseException) -> str:
    """Return a short reason why a write failed; orbax's own errors are long."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


@functools.cache
def _silence_orbax() -> None:
    """Suppress the tracebacks that orbax prints for errors it also raises, until the process ends.

    When the disk is full, each orbax thread logs its traceback, and tensorstore prints one more for
    every array whose event loop is closed. `Checkpoints` raises one short error instead.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_not_of_orbax)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # Native code without a calling Python frame reports a failure to an orbax event loop that
        # is already closed.
        trace = unraisable.exc_traceback
        begins = "" if trace is None else trace.tb_frame.f_code.co_name
        late = str(unraisable.exc_value) == "Event loop is closed"
        if not (late and begins == "call_soon_threadsafe"):
            before(unraisable)

    sys.unraisablehook = hook


def _not_of_orbax(record: logging.LogRecord) -> bool:
    if record.levelno < logging.ERROR:
        return True
    raised: Any = record.exc_info[2] if isinstance(record.exc_info, tuple) else None
    files = [record.pathname, *(frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised))]
    # A failed read leaves tasks behind; asyncio logs their errors without a frame of orbax.
    return not any("orbax" in file for file in files) and "tensorstore" not in record.getMessage()
