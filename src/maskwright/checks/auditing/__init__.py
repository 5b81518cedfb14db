"""Auditing: what is expected of a model, the probes asked one by one, and what their answers mean."""
