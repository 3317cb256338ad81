"""Configs: plain functions that return a ConfigDict, without importing calib_jax."""
