"""Safe reading, writing and quoting of untrusted files and texts."""
