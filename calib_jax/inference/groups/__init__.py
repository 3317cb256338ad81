"""Calibration errors of classes and of groups of examples."""
