"""What the tests of transformers import and do not need: names of another release, and `datasets`.

The names are of distributed training, whose tests need several processes and are skipped; `datasets` is
imported by the tests of pipelines, which are skipped without a network.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from transformers.distributed import tensor_parallel, utils

datasets = ModuleType("datasets")
datasets.__spec__ = ModuleSpec("datasets", None)
sys.modules.setdefault("datasets", datasets)
for module in (tensor_parallel, utils, datasets):
    module.__getattr__ = lambda _: None
