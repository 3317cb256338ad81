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
SHOWN = 5  # changed keys in an error message
# Seconds of patience with a checkpoint in progress. Orbax measures them with the wall clock, which
# jumps when a laptop wakes up or a clock is set: by decades if it started in 1970.
PATIENCE = 200 * 365 * 86_400

Config: TypeAlias = Mapping[str, Any]
# Keys that may change, or a function of both configs and the steps done that returns the keys.
Free: TypeAlias = Collection[str] | Callable[[Config, Config, int], Collection[str]]


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
            warnings.warn(
                f"{folder} cannot be locked ({error}): take care that no other process writes into"
                " it.",
                stacklevel=4,
            )
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
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
    if not folder.is_dir() or any((folder / name).is_file() for name in (TRAINING, EVALUATION)):
        return
    runs = ("", "seed_*/", "runs/*/*/")  # a run, several seeds, a sweep
    if any(path for run in runs for path in folder.glob(f"{run}{CHECKPOINTS}/*/about")):
        return
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if names:
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
    flat_before, flat_now = (traverse_util.flatten_dict(dict(c), sep=".") for c in (before, now))

    def differ(key: str) -> bool:
        # As JSON saves them: a tuple is a list, and NaN equals NaN.
        values = flat_before.get(key, ...), flat_now.get(key, ...)
        saved, current = (json.dumps(value, default=repr) for value in values)
        return values[0] != values[1] and saved != current

    return [
        f"{key}: {flat_before.get(key, 'nothing')} before, {flat_now.get(key, 'nothing')} now"
        for key in sorted(flat_before.keys() | flat_now.keys())
        if differ(key) and not any(f"{key}.".startswith(f"{part}.") for part in free)
    ]


def forbidden(before: Config, now: Config, step: int, free: Free) -> list[str]:
    """List the changed keys that must not change, because the first `step` steps depend on them."""
    return differences(before, now, free=free(before, now, step) if callable(free) else free)


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
        self._policy = _Policy()
        self._saving: int | None = None
        if not read_only:
            check_ours(folder.parent)
            with writing(folder):
                if folder.is_symlink():
                    raise OSError(errno.ELOOP, "it is a link", str(folder))
                folder.mkdir(parents=True, exist_ok=True)
        this = jax.process_index()  # only process 0 saves; orbax must not wait for the others
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
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in ascending order."""
        names = [about.parent.name for about in self.folder.glob("*/about")]
        numbers = {name: int(name) for name in names if name.isdecimal()}
        for name, number in numbers.items():
            if name != str(number):
                raise AnotherConfig(
                    f"{self.folder / name} is no name of a checkpoint: give it the name {number},"
                    " or move it away."
                )
        return sorted(numbers.values())

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
        self._policy.removed = set(remove)
        self._saving = step
        with self._saving_errors():
            needed = sum(leaf.nbytes for leaf in leaves.values())
            free = shutil.disk_usage(self.folder).free
            if needed > free:
                why = f"it needs {needed / 1e6:.3g} MB, and {free / 1e6:.3g} MB are free"
                raise OSError(errno.ENOSPC, why)
            # Without `force` orbax saves only steps newer than all folders named by a number.
            self._manager.save(step, args=items, force=True)

    def wait(self) -> None:
        """Wait until the checkpoint in progress is on disk."""
        with self._saving_errors():
            self._manager.wait_until_finished()
        self._saving = None

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
          step: the step of the checkpoint; None restores the newest readable one.
          warn: called with a message for each checkpoint that cannot be read and is skipped.
        """
        step, (about, state) = self._newest(step, self._whole, warn)
        return Saved(_as_template(template, _leaves(state), self.folder / str(step)), about)

    def variables(
        self, step: int | None = None, *, warn: Callable[[str], None] = warnings.warn
    ) -> PyTree:
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
        """Stop the writer threads."""
        with contextlib.suppress(Exception):  # `wait` raises the errors of a write in progress
            self._manager.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _about(self, step: int) -> dict[str, Any]:
        items = self._args.Composite(about=self._args.JsonRestore())
        about: dict[str, Any] = self._manager.restore(step, args=items)["about"]
        if about["step"] != step:
            raise AnotherConfig(
                f"{self.folder / str(step)} holds the checkpoint of step {about['step']}: give it"
                " that name again, or move it away."
            )
        return about

    def _whole(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read `about` and the arrays of a checkpoint."""
        about = self._about(step)
        items = self._args.Composite(state=self._args.StandardRestore())
        state = self._manager.restore(step, args=items)["state"]
        return about, jax.tree.map(np.asarray, state)

    def _newest(
        self,
        step: int | None,
        read: Callable[[int], Any],
        warn: Callable[[str], None] | None = None,
    ) -> tuple[int, Any]:
        """Return the step and the content of one checkpoint, or of the newest readable one.

        Args:
          step: the step; None tries all, from the newest on.
          read: reads the content of the checkpoint of a step.
          warn: called with a message for each checkpoint that cannot be read; the checkpoint is
            then renamed to STEP.damaged, unless in read-only mode.
        """
        steps = self.steps
        if step is not None and step not in steps:
            existing = ", ".join(map(str, steps)) or "none"
            raise NoCheckpoint(
                f"there is no checkpoint {step} in {self.folder}; it has {existing}."
            )
        for candidate in reversed(steps) if step is None else [step]:
            place = self.folder / str(candidate)
            try:
                return candidate, read(candidate)
            except AnotherConfig:
                raise
            except Exception as error:
                if step is not None:
                    raise NoCheckpoint(f"{place} is damaged: {_first_line(error)}") from error
                if warn is not None:
                    warn(f"{place} is damaged and skipped: {_first_line(error)}")
                    self._set_aside(place)
        if not steps:
            raise NoCheckpoint(f"there is no checkpoint in {self.folder}.")
        raise NoCheckpoint(
            f"none of the {len(steps)} checkpoints in {self.folder} can be read: move the folder"
            " away to begin anew."
        )

    def _set_aside(self, place: Path) -> None:
        if not self._read_only:
            aside = place.with_name(f"{place.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)  # damaged earlier, at the same step
            with writing(place):
                place.rename(aside)
            self._manager.reload()

    @contextlib.contextmanager
    def _saving_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            intact = max((step for step in self.steps if step != self._saving), default=None)
            rest = "there is none yet" if intact is None else f"checkpoint {intact} there is good"
            raise CannotWrite(
                f"checkpoint {self._saving} could not be written to {self.folder}"
                f" ({_reason(error)}); {rest}: make room there, and the same command resumes the"
                " run."
            ) from error


class _Policy:
    """An orbax preservation policy: keep every checkpoint but the given ones."""

    removed: Collection[int] = ()

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        return [checkpoint.step not in self.removed for checkpoint in checkpoints]


def _leaves(tree: PyTree) -> dict[tuple[str, ...], Any]:
    """Return the leaves of a tree by path."""
    return {
        tuple(jax.tree_util.keystr((key,), simple=True) for key in path): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _as_template(
    template: PyTree, leaves: Mapping[tuple[str, ...], np.ndarray], folder: Path
) -> PyTree:
    """Build a tree with the structure of the template; raise an error if anything differs."""

    def kind(leaf: Any) -> str:
        return "nothing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"

    expected = _leaves(template)
    for path in sorted(expected.keys() | leaves.keys()):
        there, here = kind(leaves.get(path)), kind(expected.get(path))
        if there != here:
            raise AnotherConfig(
                f"{folder} holds another network, optimizer or loss: {'/'.join(path)} is {there}"
                f" there and {here} here."
            )
    return jax.tree.unflatten(jax.tree.structure(template), [leaves[path] for path in expected])


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
    """Suppress the logged tracebacks of errors that orbax also raises, as on a full disk."""

    def keep(record: logging.LogRecord) -> bool:
        text = f"{record.pathname} {record.getMessage()} {record.exc_info}".casefold()
        return record.levelno < logging.ERROR or not re.search("orbax|tensorstore|ocdbt", text)

    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(keep)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # Native code reports a failure to an event loop of orbax that is already closed.
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
