"""Feeds: the order of examples, and how they reach the devices."""
