"""The training loop: plan, start, evaluation, interruption."""
