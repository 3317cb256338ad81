"""Choose how examples reach the devices: resident or streamed.

    Resident   arrays that fit: copied to every device once; the steps of an epoch are one
               compiled loop that gathers examples by index
    Streamed   everything else: read by threads ahead of the device, one call per step

Both execute the same steps and return the same numbers.
"""

from __future__ import annotations

from calib_jax.core.examples import InMemory, Source
from calib_jax.train.feeds.resident import Resident
from calib_jax.train.feeds.runner import Feed
from calib_jax.train.feeds.streamed import Streamed
from calib_jax.train.loop.arrangement import Arrangement


def feed(
    source: Source,
    arrangement: Arrangement,
    *,
    resident_bytes: int = 2**30,
    threads: int | None = None,
) -> Feed:
    """Keep a source on the devices if it is in memory and small enough, else stream it.

    Args:
      source: the examples.
      arrangement: the placement of the runs on the devices.
      resident_bytes: the largest size at which in-memory examples are copied to the devices.
      threads: the number of reader threads of a stream; None uses one per available core.
    """
    if isinstance(source, InMemory) and source.nbytes <= resident_bytes:
        return Resident(source, arrangement)
    return Streamed(source, arrangement, threads=threads)
