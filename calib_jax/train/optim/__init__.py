"""Optimizers, groups of parameters and learning-rate schedules."""
