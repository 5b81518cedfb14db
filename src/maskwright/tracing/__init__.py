"""Trace: which attention calls a model makes, and with which masks."""
