"""Checks and conversions of the arrays that users pass to public functions."""
