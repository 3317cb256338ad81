"""The environment of a result, its provenance: command, commit, date, machine and versions.

    python -m experiments.running.environment

prints the versions, devices and settings for an issue report, one per line. It also runs if a
package is missing or broken, and reports the problem.
"""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
from typing import Any

import calib_jax

PACKAGES = ("calib_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
NOT_INSTALLED = "not installed"
_CHECKOUT = pathlib.Path(__file__).parent
BESIDE = ("jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "tensorflow", "torch")
SETTINGS = re.compile(r"(JAX|XLA|LIBTPU)_|CUDA_VISIBLE_DEVICES$")


def describe() -> dict[str, Any]:
    """Describe this process: command, commit, date, machine, versions."""
    import jax  # imported here so that `lines` runs if JAX is broken

    return {
        "command": shlex.join(["python", "-m", _module(), *sys.argv[1:]]),
        "commit": commit(),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": f"{jax.devices()[0].device_kind}, {len(jax.devices())} device(s)",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
    }


def published() -> dict[str, Any]:
    """Describe this process for a published file, without folders of this machine."""
    origin = describe()
    return origin | {"command": without_folders(origin["command"])}


def without_folders(command: str) -> str:
    """Shorten absolute paths in a command to their last component."""
    return re.sub(r"=/\S*/", "=", command)


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec else sys.argv[0]


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute results."""
    return {name: version(name) for name in PACKAGES}


def version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED


def commit() -> str:
    """Return the commit of the checkout, or "unknown"."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_CHECKOUT)
        return process.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()


# ------------------------------------------------------------------------------------------------
# The report for an issue.


def lines() -> list[str]:
    """Describe the installation, the machine and the settings."""
    versions = {name: version(name) for name in (*PACKAGES, *BESIDE)}
    shown = [
        f"{name} {version}"
        for name, version in versions.items()
        if name not in BESIDE or version != NOT_INSTALLED
    ]
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if SETTINGS.match(k)]
    return [
        f"calib_jax {calib_jax.__version__}, commit {commit()}",
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
