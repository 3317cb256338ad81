"""One training step: forward pass, objective, update."""
