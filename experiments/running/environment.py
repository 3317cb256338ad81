"""Print the versions, devices and settings for an issue report, one per line.

    python -m experiments.running.environment

It also runs if a package is missing or broken, and reports the problem.
"""

import os
import platform
import re
import sys

import calib_jax
from experiments.running import provenance

BESIDE = ("jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "tensorflow", "torch")
SETTINGS = re.compile(r"(JAX|XLA|LIBTPU)_|CUDA_VISIBLE_DEVICES$")


def lines() -> list[str]:
    """Describe the installation, the machine and the settings."""
    versions = {name: provenance.version(name) for name in (*provenance.PACKAGES, *BESIDE)}
    shown = [
        f"{name} {version}"
        for name, version in versions.items()
        if name not in BESIDE or version != provenance.NOT_INSTALLED
    ]
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if SETTINGS.match(k)]
    return [
        f"calib_jax {calib_jax.__version__}, commit {provenance.commit()}",
        f"Python {platform.python_version()}, {system}",
        *shown,
        _devices(),
        *settings,
    ]


def _devices() -> str:
    """Return the devices that JAX finds, or its error in one line."""
    try:
        import jax

        devices = [f"{device.platform} {device.device_kind}" for device in jax.devices()]
    except Exception as error:  # report a broken installation instead of raising
        return f"devices: none, {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    counts = {name: devices.count(name) for name in devices}
    return f"devices: {', '.join(f'{count} x {name}' for name, count in counts.items())}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
