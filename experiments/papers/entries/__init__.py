"""The entries: a folder for each source, a file for each topic."""
