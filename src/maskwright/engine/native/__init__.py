"""The kernel in C: attention that reads spans, forward and backward, on the CPU.

What may enter: the C sources, what loads them, and what turns tensors and arrays into pointers.
Nothing here knows of plans or strips.
"""
