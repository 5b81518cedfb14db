"""Plugins for pytest: `record` writes the outcomes, others put maskwright in place of an original."""
