"""Devices and processes: replicas, collectives, memory."""
