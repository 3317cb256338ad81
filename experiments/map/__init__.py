"""The map: which loss calibrates best, along the temperature that cross-entropy needs."""
