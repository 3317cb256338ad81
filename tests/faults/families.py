"""The families of faults by name, in the order of the table."""

from tests.faults import damage, disks, kills, others, programs, signals

MODULES = (kills, programs, signals, disks, damage, others)
FAMILIES = {module.__name__.rpartition(".")[2]: module for module in MODULES}
