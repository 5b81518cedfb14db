"""Targets: conversion of a mask to the format of a framework, exactly or with an error.

`lower` holds the table of targets and the public functions. Each target has one file, named after
its framework, with its capabilities as data (`TARGET`), the function that builds the format
(`lower`) and the one that writes the code to use it (`usage`). Targets never import each other.
They share `base` (the types), `predicates` (properties of a bound mask), `varlen` (segments of
variable-length kernels), `_torch` (tensors) and `codegen` (source code). A framework is imported
only in the file named after it, and only when that target is requested.
"""
