"""The fault table: what a run survives, loses or answers wrongly under each fault."""
