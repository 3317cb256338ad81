"""Proofs of what calib_jax promises; tests/README.md says which suite proves what."""
