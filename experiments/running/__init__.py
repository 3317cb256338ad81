"""Shared code of the binaries: building from a config, data, folders of runs, processes."""
