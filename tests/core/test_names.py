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
        ("expected_calibration_error", metrics.catalogue(), "ece"),
        ("negative_log_likelihood", metrics.catalogue(), "nll"),
        ("brier_score", metrics.catalogue(), "brier"),
        ("cross_entropy", metrics.catalogue(), "nll"),
        ("NLLLoss", losses.catalogue(), "cross_entropy"),
        ("brier_score", losses.catalogue(), "brier"),
        ("temperature_scaling", calibrators.catalogue(), "temperature"),
        ("histogram-binning", calibrators.catalogue(), "histogram"),
        ("MbLS", losses.catalogue(), "margin_smoothing"),
        ("focal_loss", losses.catalogue(), "focal"),
    ],
)
def test_a_name_of_another_library_gets_the_one_of_the_same_meaning(name, catalogue, meant):
    assert names.closest(name, catalogue) == [meant]


def test_every_meaning_is_a_name_of_today():
    known = {*metrics.catalogue(), *calibrators.catalogue(), *losses.catalogue()}
    known |= {"batch_size", "learning_rate", "num_epochs", "weight_decay"}  # keys of configs
    assert {meant for several in names.MEANINGS.values() for meant in several} <= known
