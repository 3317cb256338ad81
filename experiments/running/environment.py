"""Print the versions, devices and settings for an issue report, one per line.

    python -m experiments.running.environment

It also runs if a package is missing, too old or broken, and reports the problem.
"""

import os
import pathlib
import platform
import re
import sys

import calib_jax
from experiments.running import provenance

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
BESIDE = ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "tensorflow", "torch")
SETTINGS = re.compile(r"(JAX|XLA|LIBTPU)_|CUDA_VISIBLE_DEVICES$")


def lines() -> list[str]:
    """Describe the installation, the machine and the settings."""
    source = (CHECKOUT / "setup.py").read_text(encoding="utf-8")
    listed = source.partition("REQUIRED = [")[2].partition("]")[0]
    required = re.findall(r'"(.+)>=(.+)"', listed)
    system = f"{platform.system()} {platform.machine()}"
    first = f"Python {platform.python_version()}, {system}, {os.cpu_count()} cores"
    packages = [f"{name} {_state(name, oldest)}" for name, oldest in sorted(required)]
    versions = {name: provenance.version(name) for name in BESIDE}
    beside = [f"{name} {v}" for name, v in versions.items() if v != provenance.NOT_INSTALLED]
    settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if SETTINGS.match(k)]
    checkout = f"calib_jax {calib_jax.__version__}, commit {provenance.commit()}"
    return [checkout, first, *packages, *beside, _devices(), *settings]


def _state(package: str, oldest: str) -> str:
    """Return the version of a required package, and whether it is too old."""
    version = provenance.version(package)
    if version == provenance.NOT_INSTALLED:
        return f"is not installed, >={oldest} is required"
    numbers, wanted = ([int(n) for n in re.findall(r"\d+", v)] for v in (version, oldest))
    return version if numbers >= wanted else f"{version} is too old, >={oldest} is required"


def _devices() -> str:
    """Return the devices that JAX finds, or its error in one line."""
    try:
        import jax

        devices = [f"{device.platform} {device.device_kind}" for device in jax.devices()]
    except Exception as error:  # report a broken installation instead of raising
        return f"devices: none, {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    counts = {name: devices.count(name) for name in devices}
    processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return f"devices: {', '.join(f'{n} x {name}' for name, n in counts.items())}{processes}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
