"""The folder of a run: its lock, its checkpoints, and the comparison of configs.

A checkpoint holds the arrays of the train state by path (`params/Dense_0/kernel`) and one JSON
object, `about`: the config, the rows of all evaluations, the best ones and the patience. Orbax
writes it atomically, so the process may be killed at any time. If the newest checkpoint cannot be
read, the one before it is restored. Only checkpoints that `about` lists are ever removed.
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
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from flax import traverse_util

from calib_jax.core.examples import Source, labels_of
from calib_jax.core.types import PyTree

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

TRAINING = ".lock"
EVALUATION = ".lock-evaluation"  # a second lock: a run may be evaluated while it is trained
CHECKPOINTS = "checkpoints"
HALF = ".orbax-checkpoint-tmp"  # ends the names of checkpoints that are being written or removed
SHOWN = 5  # changed keys in an error message

Config: TypeAlias = Mapping[str, Any]
# Keys that may change, or a function of both configs and the steps done that returns the keys.
Free: TypeAlias = Collection[str] | Callable[[Config, Config, int], Collection[str]]
Read: TypeAlias = Callable[[int], Any]  # the content of the checkpoint of a step
Warn: TypeAlias = Callable[[str], None]


class AnotherConfig(ValueError):
    """Raised when the folder holds another run, or files that belong to no run."""


class InUse(RuntimeError):
    """Raised when another process uses this folder."""


class NoCheckpoint(LookupError):
    """Raised when there is no checkpoint to read."""


class CannotWrite(OSError):
    """Raised when the folder of a run cannot be written to; what was saved is whole."""


# ------------------------------------------------------------------------------------------------
# Whose folder it is.


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an `OSError` to a `CannotWrite` that names the path and the reason."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise CannotWrite(
            f"{error.filename or path} cannot be written to: {why}; what was saved is whole."
        ) from error


@contextlib.contextmanager
def only_one(folder: Path | str, name: str = TRAINING) -> Iterator[None]:
    """Create a folder, and hold its lock `name`; the system releases it when the process ends."""
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666)
    with os.fdopen(descriptor, "r+", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip() or "another process"
            raise InUse(
                f"{folder} is in use by {holder}: wait for it, stop it, or choose another folder."
            ) from None
        except (OSError, AttributeError) as error:  # the file system or Windows has no locks
            warning = f"{folder} cannot be locked ({error}): let no other process write into it."
            warnings.warn(warning, stacklevel=4)
        file.truncate(0)
        print(f"process {os.getpid()}", file=file, flush=True)
        yield


_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def check_ours(folder: Path | str) -> None:
    """Raise `AnotherConfig` for a folder with files that no run of this library has written.

    A folder of a run has a lock file, or checkpoints with a JSON object `about`. Orbax takes names
    with some characters for patterns and would lose every checkpoint, so these are refused.
    """
    folder = Path(folder)
    if bad := re.search(r"[][*?\\]", str(folder.absolute())):
        raise AnotherConfig(
            f"{folder} has the character {bad[0]!r} in its path, which the library of checkpoints"
            " reads as a pattern: choose a folder without it."
        )
    runs = ("", "seed_*/", "runs/*/*/")  # a run, several seeds, a sweep
    marks = (TRAINING, EVALUATION, *(f"{run}{CHECKPOINTS}/*/about" for run in runs))
    names = sorted(path.name for path in folder.glob("[!.]*"))
    if names and not any(path for mark in marks for path in folder.glob(mark)):
        raise AnotherConfig(
            f"{folder} holds files that belong to no run, such as {names[0]}: choose a new or an"
            " empty folder."
        )


def identity_of(source: Source) -> dict[str, Any]:
    """Identify a set of examples by its size and its labels, if they are in memory."""
    labels = labels_of(source)
    crc = None if labels is None else zlib.crc32(labels.astype("<i4").tobytes())
    return {"examples": len(source), "crc of the labels": crc}


def differences(before: Config, now: Config, *, free: Collection[str] = ()) -> list[str]:
    """List the keys in which two nested configs differ, with both values.

    Args:
      before, now: the configs.
      free: keys to leave out, with all keys inside them.

    >>> before, now = {"lr": 0.1, "loss": {"gamma": 3}}, {"lr": 0.1, "loss": {"gamma": 5}}
    >>> differences(before, now), differences(before, now, free=["loss"])
    (['loss.gamma: 3 before, 5 now'], [])
    """
    flat = [traverse_util.flatten_dict(dict(config), sep=".") for config in (before, now)]
    changed = []
    for key in sorted({*flat[0], *flat[1]}):
        old, new = (config.get(key, "nothing") for config in flat)
        is_free = any(f"{key}.".startswith(f"{part}.") for part in free)
        if old != new and str(old) != str(new) and not is_free:  # NaN equals NaN
            changed.append(f"{key}: {old} before, {new} now")
    return changed


def listed(changed: Sequence[str]) -> str:
    """Format the first changed keys, and count the others."""
    more = f"; and {len(changed) - SHOWN} more keys" if len(changed) > SHOWN else ""
    return "; ".join(changed[:SHOWN]) + more


# ------------------------------------------------------------------------------------------------
# Checkpoints.


class Saved(NamedTuple):
    """A restored checkpoint."""

    state: PyTree
    about: dict[str, Any]


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints of one run, by optimizer step; a `with` block closes them.

    Args:
      folder: the folder of the checkpoints, inside the folder of the run.
      read_only: do not write into the folder, so that a run in progress is not disturbed.
    """

    def __init__(self, folder: Path | str, *, read_only: bool = False) -> None:
        import orbax.checkpoint as ocp

        _silence_orbax()
        self.folder = folder = Path(folder)
        self._args, self._read_only = ocp.args, read_only
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._writing: Future[None] | None = None
        if not read_only:
            check_ours(folder.parent)
            with writing(folder):
                if folder.is_symlink():
                    raise OSError(errno.ELOOP, "it is a link", str(folder))
                folder.mkdir(parents=True, exist_ok=True)
                for half in folder.glob(f"*{HALF}*"):  # of a process that was killed
                    shutil.rmtree(half, ignore_errors=True)
        this = jax.process_index()  # only process 0 saves; orbax must not wait for the others
        processes = ocp.options.MultiprocessingOptions(this, {this})
        # Threads that create folders would be waited for by the wall clock, which may jump.
        in_turn = ocp.AsyncOptions(create_directories_asynchronously=False)
        options = ocp.CompositeOptions(multiprocessing_options=processes, async_options=in_turn)
        handler = ocp.CompositeCheckpointHandler(composite_options=options)
        self._orbax = ocp.Checkpointer(handler, multiprocessing_options=processes)

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in ascending order."""
        places = [about.parent for about in self.folder.glob("*/about")]
        steps = {place: int(place.name) for place in places if place.name.isdecimal()}
        for place, step in steps.items():
            _check_name(place, step)
        return sorted(steps.values())

    def save(
        self, state: PyTree, about: Mapping[str, Any], step: int, *, remove: Collection[int] = ()
    ) -> None:
        """Start writing a checkpoint; `wait` returns once it is on disk.

        Args:
          state: arrays on the host, which must not change before `wait` returns.
          about: a JSON object.
          step: the step, which names the checkpoint.
          remove: steps whose checkpoints are removed then.
        """
        leaves = _leaves(jax.tree.map(np.asarray, state))
        items = self._args.Composite(
            state=self._args.StandardSave(traverse_util.unflatten_dict(leaves)),
            about=self._args.JsonSave({**about, "step": step}),
        )
        needed = sum(leaf.nbytes for leaf in leaves.values())

        def write() -> None:
            try:
                free = shutil.disk_usage(self.folder).free
                if needed > free:
                    why = f"it needs {needed / 1e6:.3g} MB, and {free / 1e6:.3g} MB are free"
                    raise OSError(errno.ENOSPC, why)
                self._orbax.save(self._place(step), items)
            except Exception as error:
                good = self.steps[-1:]
                rest = f"checkpoint {good[0]} there is good" if good else "there is none yet"
                raise CannotWrite(
                    f"checkpoint {step} could not be written to {self.folder} ({_reason(error)});"
                    f" {rest}: make room there, and the same command resumes the run."
                ) from error
            for old in map(self._place, remove):
                half = old.with_name(f"{old.name}{HALF}")  # a reader sees all of it or nothing
                with contextlib.suppress(OSError):
                    shutil.rmtree(old.rename(half), ignore_errors=True)

        self._writing = self._thread.submit(write)

    def wait(self) -> None:
        """Wait until the checkpoint in progress is on disk, without those that it replaces."""
        if self._writing is not None:
            self._writing.result()

    def restore(
        self, template: PyTree, step: int | None = None, *, warn: Warn = warnings.warn
    ) -> Saved:
        """Restore a checkpoint.

        Args:
          template: a tree with the expected structure, shapes and dtypes.
          step: the step of the checkpoint; None restores the newest readable one.
          warn: called with a message for each checkpoint that cannot be read and is skipped.
        """
        step, (about, state) = self._newest(step, self._whole, warn)
        leaves, expected = _leaves(state), _leaves(template)
        for path in sorted({*leaves, *expected}):
            there, here = (_kind(tree.get(path)) for tree in (leaves, expected))
            if there != here:
                raise AnotherConfig(
                    f"{self.folder / str(step)} holds another network, optimizer or loss:"
                    f" {'/'.join(path)} is {there} there and {here} here."
                )
        ordered = [leaves[path] for path in expected]
        return Saved(jax.tree.unflatten(jax.tree.structure(template), ordered), about)

    def variables(self, step: int | None = None, *, warn: Warn = warnings.warn) -> PyTree:
        """Restore the variables used in evaluation, without a template.

        Args:
          step, warn: as in `restore`.

        Returns:
          `{"params": ..., "batch_stats": ...}`, from the moving averages if the state has any.
        """
        _, (_, state) = self._newest(step, self._whole, warn)
        params, others = state["params"], state.get("model_state", {})
        if averages := state.get("average"):
            params, others = averages["0"], averages.get("1", {})
        return {"params": params, **others}

    def about(self, step: int | None = None) -> dict[str, Any]:
        """Read `about` from a checkpoint, by default the newest one in which it is readable."""
        return self._newest(step, self._about)[1]

    def close(self) -> None:
        """Finish the checkpoint in progress, whose error `wait` raises, and end the thread."""
        self._thread.shutdown()
        self._orbax.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, step: int) -> Path:
        return self.folder.absolute() / str(step)

    def _about(self, step: int) -> dict[str, Any]:
        about: dict[str, Any] = json.loads((self._place(step) / "about" / "metadata").read_text())
        _check_name(self.folder / str(step), about["step"])
        return about

    def _whole(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read `about` and the arrays of a checkpoint."""
        items = self._args.Composite(state=self._args.StandardRestore())
        about, state = self._about(step), self._orbax.restore(self._place(step), items)["state"]
        return about, jax.tree.map(np.asarray, state)

    def _newest(self, step: int | None, read: Read, warn: Warn | None = None) -> tuple[int, Any]:
        """Return the step and the content of one checkpoint, or of the newest readable one.

        Args:
          step: the step; None tries all, from the newest on.
          read: reads the content of the checkpoint of a step.
          warn: called with a message for each checkpoint that cannot be read; the checkpoint is
            then renamed to STEP.damaged, unless in read-only mode.
        """
        steps = self.steps
        for candidate in reversed(steps) if step is None else [step]:
            place = self.folder / str(candidate)
            try:
                return candidate, read(candidate)
            except AnotherConfig:
                raise
            except Exception as error:
                if step is not None:
                    existing = ", ".join(map(str, steps)) or "none"
                    raise NoCheckpoint(
                        f"{place} cannot be read ({_reason(error)}); the checkpoints there are"
                        f" {existing}."
                    ) from error
                if warn is not None:
                    warn(f"{place} is damaged and skipped: {_reason(error)}")
                    self._set_aside(place)
        raise NoCheckpoint(
            f"none of the {len(steps)} checkpoints in {self.folder} can be read: train on, or move"
            " the folder away to begin anew."
        )

    def _set_aside(self, place: Path) -> None:
        if not self._read_only:
            aside = place.with_name(f"{place.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)  # damaged earlier, at the same step
            place.rename(aside)


def _check_name(place: Path, step: int) -> None:
    """Raise `AnotherConfig` for a checkpoint that does not have the name of its step."""
    if place.name != str(step):
        raise AnotherConfig(
            f"{place} holds the checkpoint of step {step}: give it that name again, or move it"
            " away."
        )


def _leaves(tree: PyTree) -> dict[tuple[str, ...], Any]:
    """Return the leaves of a tree by path."""
    return {
        tuple(jax.tree_util.keystr((key,), simple=True) for key in path): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _kind(leaf: Any) -> str:
    return "nothing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"


def _reason(error: BaseException) -> str:
    """Return a short reason why a write or a read failed; orbax's own errors are long."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    said = os.strerror(int(code[1])) if code else getattr(error, "strerror", None)
    return (said or str(error).strip() or type(error).__name__).splitlines()[0][:200]


@functools.cache
def _silence_orbax() -> None:
    """Suppress what orbax logs beside the errors that it raises, as on a full disk."""
    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # Native code reports a failure to an event loop of orbax that is already closed.
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
