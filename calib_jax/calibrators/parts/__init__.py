"""Code that several calibrators share: solvers, streams, storage."""
