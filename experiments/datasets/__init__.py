"""Look into data sets, find their files, and compute vectors of their texts."""
