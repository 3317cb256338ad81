"""What each process of a run in several does in test_several.py: a sum over all of them."""

import pathlib
import sys
import time

import jax
import jax.numpy as jnp
from absl import flags

from experiments import cli, processes

_DEED = flags.DEFINE_string("deed", "sum", "sum, loop, refuse, err, or idle, in --actor.")
_ACTOR = flags.DEFINE_integer("actor", 1, "The process that does it; loop is of all.")
_WORD = flags.DEFINE_string("word", "same", "What has to be the same.")
_FOLDER = flags.DEFINE_string("folder", None, "Where a process says that it has begun.")


def total() -> float:
    """Sum the processes' numbers, from 1, over all of them."""
    add = jax.pmap(lambda x: jax.lax.psum(x, "all"), "all", devices=jax.devices())
    return float(add(jnp.full(1, 1.0 + jax.process_index()))[0])


def main() -> int:
    with processes.begin({"word": _WORD.value}):
        print("sum", total(), flush=True)
        if _FOLDER.value:
            (pathlib.Path(_FOLDER.value) / str(jax.process_index())).touch()
        acts = jax.process_index() == _ACTOR.value
        if _DEED.value == "refuse" and acts:
            raise cli.Refused("the actor will not.")
        if _DEED.value == "err" and acts:
            raise RuntimeError("a bug")
        if _DEED.value == "idle" and not acts:
            time.sleep(0.5)
        elif _DEED.value == "loop" or (_DEED.value != "sum" and not acts):
            while True:
                total()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, ".")
    cli.run(main)
