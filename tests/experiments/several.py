"""The processes that test_several.py starts: each sums over all of them, and then does a deed."""

import pathlib
import sys
import time

import jax
import jax.numpy as jnp
from absl import flags

from experiments import cli, processes

_DEED = flags.DEFINE_string("deed", "sum", "What the actor does: sum, loop, refuse, err, idle.")
_ACTOR = flags.DEFINE_integer("actor", 0, "Index of the actor; the others sum until it has ended.")
_FOLDER = flags.DEFINE_string("folder", None, "Gets a file from each process that has begun.")


def total() -> float:
    """Sum the processes' numbers, from 1, over all of them."""
    add = jax.pmap(lambda x: jax.lax.psum(x, "all"), "all", devices=jax.devices())
    return float(add(jnp.full(1, 1.0 + jax.process_index()))[0])


def main() -> int:
    with processes.begin({}):
        print("sum", total(), flush=True)
        (pathlib.Path(_FOLDER.value) / str(jax.process_index())).touch()
        deed = _DEED.value if jax.process_index() == _ACTOR.value else "loop"
        if deed == "refuse":
            raise cli.Refused("the actor will not.")
        if deed == "err":
            raise RuntimeError("a bug")
        if deed == "idle":
            time.sleep(600)
        while deed == "loop" and _DEED.value != "sum":
            total()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, ".")
    cli.run(main)
