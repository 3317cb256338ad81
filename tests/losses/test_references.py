"""Every objective has a reference, and every option of it is an option of the reference."""

import importlib
import inspect
import pathlib

import pytest

from calib_jax import losses


def references():
    """Collect the references of every family, which stand in its test file."""
    collected = {}
    for file in sorted(pathlib.Path(__file__).parent.glob("test_*.py")):
        if "\nREFERENCES = {" in file.read_text(encoding="utf-8"):
            collected |= importlib.import_module(f".{file.stem}", __package__).REFERENCES
    return collected


REFERENCES = references()

# Options that do not change the value of a given state, only its updates.
STEER_THE_STATE = {
    "class_adaptive_margin": {"rho_max", "rho_growth", "rho_step", "improvement"},
    "adafocal": {"rate", "switch", "gamma_min", "gamma_max", "rule", "binning"},
    "flsc531": {"milestones"},
    "flsc532": {"milestones"},
    "recall": {"alpha", "counters"},
    "recall_precision": {"alpha", "counters"},
}


def test_every_objective_has_a_reference():
    assert set(losses.catalogue()) == REFERENCES.keys()


@pytest.mark.parametrize("name", REFERENCES)
def test_options_and_defaults_are_the_same(name):
    reference = inspect.signature(REFERENCES[name]).parameters
    for option in inspect.signature(losses.catalogue()[name]).parameters.values():
        if option.name not in STEER_THE_STATE.get(name, ()):
            assert option.name in reference
            assert option.default == reference[option.name].default, option.name
