"""Every objective has a reference, and every option of it is an option of the reference."""

import importlib
import inspect
import pathlib
import re

import pytest

from calib_jax import losses


def references():
    """Collect the references of every family: of the test file beside each file of losses."""
    collected = {}
    for family in sorted(pathlib.Path(losses.__file__).parent.rglob("*.py")):
        if (pathlib.Path(__file__).parent / f"test_{family.name}").exists():
            collected |= importlib.import_module(f".test_{family.stem}", __package__).REFERENCES
    return collected


REFERENCES = references()

# Options that do not change the value of a given state, only its updates.
STEER_THE_STATE = {
    "class_adaptive_margin": {"rho_max", "rho_growth", "rho_step", "improvement"},
    "adafocal": {"rate", "switch", "gamma_min", "gamma_max", "rule", "binning"},
    "ece_weighted": {"binning"},
    "flsc531": {"milestones"},
    "flsc532": {"milestones"},
    "recall": {"alpha", "counters"},
    "recall_precision": {"alpha", "counters"},
    "tempered_focal": {"criterion", "num_bins"},
    "tempered_flsd53": {"criterion", "num_bins"},
    "tempered_dual_focal": {"criterion", "num_bins"},
    "tempered_bsce": {"criterion", "num_bins"},
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


@pytest.mark.parametrize(
    "name", ["adafocal", "class_adaptive_margin", "ece_weighted", "recall", "recall_precision"]
)
def test_the_docstring_explains_every_option_of_an_objective_with_a_state(name):
    factory = losses.catalogue()[name]
    explained = inspect.getdoc(factory).partition("Args:")[2]
    for option in inspect.signature(factory).parameters:
        assert re.search(rf"^ +([a-z_]+, )*{option}(, [a-z_]+)*: ", explained, re.M), option
