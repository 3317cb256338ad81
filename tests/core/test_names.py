"""An unknown name: the error suggests the nearest known one."""

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
