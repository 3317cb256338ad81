"""One fragment a loss: its name, its options and how a batch is reduced."""

import difflib
import importlib
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict


def fragment(name: str, reduction: str = "sum", **options: Any) -> ConfigDict:
    """Return the config of one loss.

    Args:
      name: the name by which `calib_jax.losses.objective` knows the loss.
      reduction: "sum" over the batch in most released recipes (whose gradients are clipped
        afterwards, so it is not a matter of the learning rate alone), else "mean".
      **options: every option of the loss, so that each can be overridden on the command line.
    """
    return ConfigDict({"name": name, "options": options, "reduction": reduction})


def names() -> list[str]:
    """List the losses that have a fragment: one file each."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> ConfigDict:
    """Return the fragment of a loss by its name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names())}."
        raise ValueError(f"no config for a loss {name!r}{hint}")
    config: ConfigDict = importlib.import_module(f"configs.losses.{name}").get_config()
    return config
