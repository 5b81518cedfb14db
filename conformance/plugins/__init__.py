"""Plugins for pytest: `record` writes the outcomes, each other one puts maskwright in place of an original."""
