"""Statistics, tables and pages over the folders of runs."""
