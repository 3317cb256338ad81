"""An unknown name: the error suggests the nearest known one."""

import pytest

from calib_jax import calibrators, losses, metrics
from calib_jax.core import names
from calib_jax.core.names import no_attribute


def test_an_unknown_name_gets_the_nearest_one():
    error = no_attribute("calib_jax.losses", "focl", ["mmce_penalty", "focal"])
    assert isinstance(error, AttributeError)
    assert str(error) == "calib_jax.losses has no 'focl'; did you mean 'focal'?"
    for name in ("Focal", "FOCAL"):
        error = no_attribute("calib_jax.losses", name, ["dual_focal", "focal"])
        assert str(error).endswith("; did you mean 'focal'?")
    error = no_attribute("calib_jax.losses", "zzz", ["focal"])
    assert str(error) == "calib_jax.losses has no 'zzz'."


@pytest.mark.parametrize(
    ("name", "catalogue", "meant"),
    [
        ("brier_score", metrics.catalogue(), "brier"),
        ("brier_score", losses.catalogue(), "brier"),
        ("temperature_scaling", calibrators.catalogue(), "temperature"),
        ("histogram-binning", calibrators.catalogue(), "histogram"),
        ("focal_loss", losses.catalogue(), "focal"),
    ],
)
def test_a_longer_name_gets_the_nearest_one(name, catalogue, meant):
    assert names.closest(name, catalogue) == [meant]
