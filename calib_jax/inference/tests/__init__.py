"""Tests of calibration, and corrections for several tests."""
