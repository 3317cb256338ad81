"""Binaries that bring the rooms of calib_jax together; run from the checkout."""
