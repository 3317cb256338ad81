"""Safe reading, writing and quoting of files and texts from elsewhere."""
