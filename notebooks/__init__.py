"""Notebooks for newcomers, and what runs them."""
