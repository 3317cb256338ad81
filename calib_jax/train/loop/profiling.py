"""Trace some training steps with the JAX profiler."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import jax


class Profile:
    """Trace the first steps after the steps that compile.

    Args:
      folder: the folder of the trace; None disables tracing, as in all processes but one.
      steps: the number of steps to trace.
      report: prints and logs a line.
    """

    def __init__(self, folder: Path | None, steps: int, report: Callable[[str], None]) -> None:
        self._folder, self._report = folder, report
        self._wanted = self._left = steps
        self._warm = self._running = False

    def limit(self, size: int) -> int:
        """Shorten a chunk of training, so that it ends with the trace."""
        return min(size, self._left) if self._warm and self._left else size

    @contextlib.contextmanager
    def chunk(self, steps: int) -> Iterator[None]:
        """Trace a chunk if its trace is due; the first chunk compiles and is not traced.

        Args:
          steps: the number of steps, whose results the caller waits for.
        """
        traced = self._warm and self._left > 0
        if traced and not self._running and self._folder is not None:
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        yield
        self._warm = True
        if traced:
            self._left -= steps
            if self._left <= 0:
                self.close()

    def close(self) -> None:
        """End the trace and print its location."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
            self._report(
                f"profile: {self._wanted - self._left} steps in {self._folder}; open it in Perfetto"
                f" (https://ui.perfetto.dev) or by tensorboard --logdir={self._folder}."
            )
        elif self._left and self._left == self._wanted and self._folder is not None:
            self._report("profile: no step was traced, because no step was left after compiling.")
        self._left = 0
