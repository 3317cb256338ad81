"""The folder of a run: checkpoints, logs, lock."""
