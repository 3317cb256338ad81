"""The families of faults by name, in the order of the table."""

from tests.faults import kills

FAMILIES = {"kills": kills}
