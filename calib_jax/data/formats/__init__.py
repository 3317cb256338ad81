"""File formats of data sets, read within limits."""
