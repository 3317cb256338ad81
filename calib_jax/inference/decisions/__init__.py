"""Decisions by probabilities: their costs and guarantees."""
