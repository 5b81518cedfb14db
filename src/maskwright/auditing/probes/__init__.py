"""Probes: a model is run again and again, with something changed that must not matter, or must.

What may enter here: a subject (a model and its inputs, as something that can be run, cut and
changed), and one file for each question that is asked of it. What the answers mean is in
`diagnosis`; which masks are expected, in `expectations`.
"""
