"""The table of the losses' options builds, and the losses accept it."""

import inspect

import ml_collections
import pytest

from calib_jax import losses
from configs import losses as fragments

NAMES = fragments.names()


def test_every_row_is_an_objective_and_there_is_one_of_each():
    assert sorted(losses.catalogue()) == NAMES


def test_fragment_is_an_objective():
    for name in NAMES:
        config = fragments.load(name)
        assert isinstance(config, ml_collections.ConfigDict), name
        assert set(config) == {"name", "options", "reduction"}, name
        assert config.name == name, name
        assert config.reduction in {"sum", "mean"}, name
        losses.objective(config.name, **config.options)


def test_every_option_can_be_overridden():
    for name in NAMES:
        # A ConfigDict refuses keys that it does not hold, so `--config.loss.options.gamma=2`
        # needs the key.
        parameters = inspect.signature(losses.catalogue()[name]).parameters.values()
        options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        held = fragments.load(name).options
        assert set(held) == options, name
        # Nor can a bare None be given a value: a placeholder has a type.
        assert type(None) not in {held.get_type(option) for option in held}, name


def test_fragments_are_not_shared():
    fragments.load("focal").options.gamma = 7.0
    assert fragments.load("focal").options.gamma != 7.0


def test_unknown_loss_names_the_near_one():
    with pytest.raises(ValueError, match=r"'flsd_53'.*did you mean 'flsd53'"):
        fragments.load("flsd_53")
