"""Tracing: one forward pass watched, and the mask of every attention call in it recovered."""
