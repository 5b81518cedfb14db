"""Linting: a mask as it is written down, its values, shape and cells, judged by what is known."""
