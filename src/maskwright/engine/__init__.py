"""Attention under a mask: parameters, validation, the choice of a backend, and the backends."""
