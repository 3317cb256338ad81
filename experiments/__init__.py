"""Binaries that combine the subpackages of calib_jax; run from the checkout."""
