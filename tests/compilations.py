"""Count the programs that are compiled, by JAX's own events."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_counts: list[int] = []


def _count(event: str, *_: Any, **__: Any) -> None:
    if event == _COMPILED:
        for index in range(len(_counts)):
            _counts[index] += 1


jax.monitoring.register_event_duration_secs_listener(_count)


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Yield a list whose one entry is the number of programs compiled so far in the block."""
    total = [0]
    _counts.append(0)
    try:
        yield total
    finally:
        total[0] = _counts.pop()
