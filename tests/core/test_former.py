"""Former names and options: the error contains the present name."""

import inspect

import pytest

from calib_jax.core.catalogue import Catalogue
from calib_jax.core.former import former_options, no_attribute

RENAMED = {"mmce": "mmce_penalty"}


def test_a_former_name_gets_the_present_one():
    error = no_attribute("calib_jax.losses", "mmce", ["mmce_penalty", "focal"], RENAMED)
    assert isinstance(error, AttributeError)
    assert str(error) == "calib_jax.losses.mmce is called mmce_penalty now."


def test_an_unknown_name_gets_the_nearest_one():
    error = no_attribute("calib_jax.losses", "focl", ["mmce_penalty", "focal"], RENAMED)
    assert str(error) == "calib_jax.losses has no 'focl'; did you mean 'focal'?"
    for name in ("Focal", "FOCAL"):
        error = no_attribute("calib_jax.losses", name, ["dual_focal", "focal"])
        assert str(error).endswith("; did you mean 'focal'?")
    error = no_attribute("calib_jax.losses", "zzz", ["focal"])
    assert str(error) == "calib_jax.losses has no 'zzz'."


@former_options(renamed={"slope": "slope_penalty"}, removed={"eps": "it had no effect"})
def fit(x, *, slope_penalty=0.0):
    """Fit."""
    return x, slope_penalty


def test_former_options_raise_and_the_present_ones_pass():
    assert fit(1) == (1, 0.0)
    assert fit(x=1, slope_penalty=2.0) == (1, 2.0)
    with pytest.raises(TypeError, match=r"^fit: the option 'slope' is called 'slope_penalty' now"):
        fit(1, slope=2.0)
    with pytest.raises(TypeError, match="option 'eps' was removed: it had no effect"):
        fit(1, eps=1e-6)
    with pytest.raises(TypeError, match="unexpected keyword argument 'slop'"):
        fit(1, slop=1.0)


def test_help_shows_the_present_options_alone():
    assert str(inspect.signature(fit)) == "(x, *, slope_penalty=0.0)"
    assert fit.__doc__ == "Fit."


def test_a_catalogue_answers_former_options_with_the_name_of_its_member():
    calibrators = Catalogue("calibrator")
    calibrators.register("vector")(fit)
    with pytest.raises(TypeError, match=r"^vector: the option 'slope' is called 'slope_penalty'"):
        calibrators.make("vector", slope=1.0)
    with pytest.raises(
        TypeError, match=r"'vector' has no option 'slope_penal' .*'slope_penalty'\?"
    ):
        calibrators.make("vector", slope_penal=1.0)
