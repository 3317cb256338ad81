"""The test runtime is as strict as conftest.py says."""

import warnings

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

import calib_jax


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are faked on the CPU alone")
def test_there_are_several_devices():
    assert jax.device_count() > 1


def test_ranks_do_not_broadcast():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones(3) + jnp.ones((2, 3))


def test_a_wrong_shape_is_an_error():
    with pytest.raises(jaxtyping.TypeCheckError):
        calib_jax.losses.adafocal_rule(jnp.ones(2), jnp.ones(3))


def test_warnings_are_errors():
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
