"""The lines that an issue asks for."""

import importlib.metadata

import jax

from experiments.running import environment, provenance


def test_every_required_package_and_device_has_a_line():
    lines = environment.lines()
    for name in ("jax", "jaxlib", "numpy", "flax"):
        assert f"{name} {importlib.metadata.version(name)}" in lines
    assert f"devices: {jax.device_count()} x cpu cpu" in lines
    assert any(line.startswith("XLA_FLAGS=") for line in lines)  # set by tests/conftest.py


def test_missing_and_broken_packages_are_named(monkeypatch):
    versions = {"jax": "0.9.12", "numpy": "2.10.0"}
    monkeypatch.setattr(provenance, "version", lambda name: versions.get(name, "not installed"))

    def broken():
        raise RuntimeError("no plugin\n  for this driver")

    monkeypatch.setattr(jax, "devices", broken)
    lines = environment.lines()
    assert "numpy 2.10.0" in lines
    assert "flax not installed" in lines
    assert "devices: none, RuntimeError: no plugin for this driver" in lines
