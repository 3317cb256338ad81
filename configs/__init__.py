"""Configs: plain functions that return a ConfigDict. They import nothing of calib_jax."""
