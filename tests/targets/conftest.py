"""Keras on torch, and one thread per worker: the tensors are tiny."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import torch

torch.set_num_threads(1)
