"""maskwright: attention masks for Transformers as expressions, exact at any length.

A mask is the set of (batch, head, query, key) cells in which the query attends to the key.
Each query row of that set is a short list of key intervals, called its spans.

>>> import maskwright as mw
>>> m = mw.causal() & mw.padding(lengths=[3, 4])
>>> m.on(4).why(0, 2)
query 0 does not attend to key 2: causal() masks it (2 > 0); padding(...) would allow it
>>> m == mw.parse("causal() & padding(lengths=[3, 4])")
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from maskwright import _torch_dispatch, bias, recipes
from maskwright.bias.additive import from_additive
from maskwright.core.atoms import (
    blocks,
    causal,
    chunks,
    dense,
    documents,
    everything,
    graph,
    image,
    keys,
    nothing,
    padding,
    prefix,
    queries,
    stride,
    tree,
    where,
    window,
)
from maskwright.core.batching import Packed, Padded, pack, pad
from maskwright.core.bound import BoundMask
from maskwright.core.compare import Comparison
from maskwright.core.explain import Why
from maskwright.core.expr import Mask
from maskwright.core.frame import Frame
from maskwright.core.operators import by_batch, by_head
from maskwright.core.parser import parse
from maskwright.core.serialize import from_json, to_json
from maskwright.core.simplify import simplify
from maskwright.core.spans import Spans
from maskwright.core.tiles import Tiles
from maskwright.errors import (
    ArgumentError,
    AttentionError,
    AuditError,
    FrameError,
    MaskError,
    MissingError,
    RankError,
    SizeError,
    TextError,
    TruthError,
    Unsupported,
)

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from maskwright.auditing.measure import Influence, influence
    from maskwright.auditing.report import AuditFinding, AuditReport
    from maskwright.auditing.run import audit
    from maskwright.draw.picture import picture
    from maskwright.draw.walkthrough import Walkthrough, walkthrough
    from maskwright.engine.api import BackendChoice, attention, explain_backend
    from maskwright.engine.block_selection import top_blocks
    from maskwright.engine.cost import WorkEstimate
    from maskwright.linting import lint
    from maskwright.linting.codes import Finding, LintReport
    from maskwright.recognition import Recognized, recognize
    from maskwright.recognition.encoding import Convention
    from maskwright.targets.base import Target
    from maskwright.targets.lower import capabilities, explain_lowering, lower
    from maskwright.tracing import AttentionCall, Trace, trace

# Loaded on first access, so that `import maskwright` needs numpy only.
_LAZY = {  # the same names as above, by module
    "auditing.measure": ("Influence", "influence"),
    "auditing.report": ("AuditFinding", "AuditReport"),
    "auditing.run": ("audit",),
    "draw.picture": ("picture",),
    "draw.walkthrough": ("Walkthrough", "walkthrough"),
    "engine.api": ("BackendChoice", "attention", "explain_backend"),
    "engine.block_selection": ("top_blocks",),
    "engine.cost": ("WorkEstimate",),
    "linting": ("lint",),
    "linting.codes": ("Finding", "LintReport"),
    "recognition": ("Recognized", "recognize"),
    "recognition.encoding": ("Convention",),
    "targets.base": ("Target",),
    "targets.lower": ("capabilities", "explain_lowering", "lower"),
    "tracing": ("AttentionCall", "Trace", "trace"),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "ArgumentError",
    "AttentionCall",
    "AttentionError",
    "AuditError",
    "AuditFinding",
    "AuditReport",
    "BackendChoice",
    "BoundMask",
    "Comparison",
    "Convention",
    "Finding",
    "Frame",
    "FrameError",
    "Influence",
    "LintReport",
    "Mask",
    "MaskError",
    "MissingError",
    "Packed",
    "Padded",
    "RankError",
    "Recognized",
    "SizeError",
    "Spans",
    "Target",
    "TextError",
    "Tiles",
    "Trace",
    "TruthError",
    "Unsupported",
    "Walkthrough",
    "Why",
    "WorkEstimate",
    "__version__",
    "attention",
    "audit",
    "bias",
    "blocks",
    "by_batch",
    "by_head",
    "capabilities",
    "causal",
    "chunks",
    "dense",
    "documents",
    "everything",
    "explain_backend",
    "explain_lowering",
    "from_additive",
    "from_json",
    "graph",
    "image",
    "influence",
    "keys",
    "lint",
    "lower",
    "nothing",
    "pack",
    "pad",
    "padding",
    "parse",
    "picture",
    "prefix",
    "queries",
    "recipes",
    "recognize",
    "simplify",
    "stride",
    "to_json",
    "top_blocks",
    "trace",
    "tree",
    "walkthrough",
    "where",
    "window",
]


_torch_dispatch.install(Mask, BoundMask)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'maskwright' has no attribute {name!r}")
    from maskwright._optional_deps import require

    with require(name):
        value = getattr(importlib.import_module(f"maskwright.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
