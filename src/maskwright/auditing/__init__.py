"""Audit: probes that test whether a model respects its mask, and the diagnosis of what failed."""
