"""The families of faults by name, in the order of the table."""

from tests.faults import damage, disks, kills, others

FAMILIES = {module.__name__.rpartition(".")[2]: module for module in (kills, disks, damage, others)}
