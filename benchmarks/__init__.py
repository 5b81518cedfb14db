"""Measurements beside peers; `make bench` runs them all."""
