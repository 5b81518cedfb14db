"""Lint: checks of a mask array or expression, and the codes of all findings."""
