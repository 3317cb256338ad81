"""A test runtime stricter than a user's.

Eight devices faked on the CPU, no silent broadcasting between ranks, and every shape that an
annotation of calib_jax promises is checked at every call. Warnings are errors (pyproject.toml).
"""

import gc
import os
import pathlib
import sys
from collections.abc import Iterator

from tests.flags import with_default

# Before JAX starts. What the caller has set stays: JAX_PLATFORMS=cuda runs the tests on a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = with_default("xla_force_host_platform_device_count", "8")
# XLA's older compiler of fusions takes half the time, and fuses the same operations.
os.environ["XLA_FLAGS"] = with_default("xla_cpu_use_fusion_emitters", "false")
# Small programs are not worth 32 threads of the compiler.
os.environ["XLA_FLAGS"] = with_default("xla_cpu_parallel_codegen_split_count", "1")

import jax
import jaxtyping
import pytest

from tests import annotations, programs
from tests.programs import drop_many_programs

if "calib_jax" in sys.modules:
    raise RuntimeError("calib_jax was imported before its annotations could be made to check.")
jaxtyping.jaxtyped = annotations.jaxtyped
jaxtyping.install_import_hook("calib_jax", f"{annotations.__name__}.checked")

jax.config.update("jax_numpy_rank_promotion", "raise")

# Tracing makes many objects that live on: by default a tenth of the time goes into looking for
# cycles among them. What is imported lives on, too: there is nothing to collect before the tests.
gc.set_threshold(20_000, 50, 50)
gc.disable()

# Compiling is more than half of the work of the tests. A program that one worker has compiled is
# read back by the others, by a closure that is new, after the memory was cleared, and by the next
# run, for a week.
if "CALIB_JAX_TEST_PROGRAMS" not in os.environ:  # not in a worker, which starts later
    ROOT = pathlib.Path(__file__).parents[1]
    os.environ["CALIB_JAX_TEST_PROGRAMS"] = programs.kept_in(ROOT / ".cache" / "programs")
programs.share(os.environ["CALIB_JAX_TEST_PROGRAMS"])


def pytest_configure(config: pytest.Config) -> None:
    """Choose the optimization of programs, and fix the seed of the property tests.

    The weekly run of the workflow gives a new seed, `--hypothesis-seed=N`, and prints it.

    Where slow tests are left out, LLVM does not optimize, which takes half of the time. Other
    selections compile as users do.
    """
    if "not slow" in config.option.markexpr:
        os.environ["XLA_FLAGS"] = with_default("xla_backend_optimization_level", "0")
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = "0"


def pytest_collection_finish() -> None:
    """Exclude the libraries and the tests, which live on, from all later garbage collections."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Collect garbage once, and leave nothing for the five times that pytest collects at its end.

    Each of them would take a second.
    """
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: compressed bytes hold the second in which they were made.

    Two workers that collect in different seconds would disagree about the names of the tests.
    """
    return argname if isinstance(val, bytes) else None


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed, with which a failure of a property test can be repeated."""
    return f"property tests: --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.fixture
def x64() -> Iterator[None]:
    """Run a test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a tiny one of every data set that is read from files."""
    from tests.data import tiny

    folder = tmp_path_factory.mktemp("data")
    tiny.write(folder)
    return folder


@pytest.fixture
def tiny_data(tiny_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the data sets that are read from files be the tiny ones."""
    monkeypatch.setenv("CALIB_JAX_DATA_DIR", str(tiny_folder))


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Drop compiled programs, but only when they are many: tests share them."""
    yield
    drop_many_programs()
