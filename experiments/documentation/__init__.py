"""The sources of the documentation site, and the configuration that builds it."""
