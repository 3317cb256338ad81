"""A test runtime stricter than a user's.

Eight devices faked on the CPU, no silent broadcasting between ranks, and every shape that an
annotation of calib_jax promises is checked at every call. Warnings are errors (pyproject.toml).
"""

import os
import sys
from collections.abc import Iterator

# Before JAX starts. What the caller has set stays: JAX_PLATFORMS=cuda runs the tests on a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = flags.strip()

import jax
import jaxtyping
import pytest

if "calib_jax" in sys.modules:
    raise RuntimeError("calib_jax was imported before its annotations could be made to check.")
# As for a type checker, an int is a float.
jaxtyping.install_import_hook(
    "calib_jax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64() -> Iterator[None]:
    """Run a test in double precision."""
    with jax.enable_x64(True):
        yield
