"""One config fragment per loss: its name, its options and the reduction over the batch."""

import difflib
import importlib
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict


def fragment(name: str, reduction: str = "sum", **options: Any) -> ConfigDict:
    """Return the config of one loss.

    Args:
      name: the name of the loss in `calib_jax.losses.objective`.
      reduction: "sum" over the batch, as in most released recipes, or "mean". Because of gradient
        clipping, the difference is not only a factor in the learning rate.
      **options: every option of the loss, so that each can be overridden on the command line.
    """
    return ConfigDict({"name": name, "options": options, "reduction": reduction})


def names() -> list[str]:
    """List the losses that have a fragment, one file each."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> ConfigDict:
    """Return the fragment of the loss with this name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names())}."
        raise ValueError(f"no config for a loss {name!r}{hint}")
    config: ConfigDict = importlib.import_module(f"configs.losses.{name}").get_config()
    return config
