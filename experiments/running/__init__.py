"""What the binaries share: building from a config, data, folders of runs, processes."""
