"""maskwright: attention masks for Transformers, said in one line and known exactly in O(T).

A mask is the set of (batch, head, query, key) cells in which a query may see a key.
Every query's row of it is a few intervals of keys.

>>> import maskwright as mw
>>> m = mw.causal() & mw.padding(lengths=[3, 4])
>>> m.on(4).why(0, 2)
query 0 may not see key 2: causal() stops it (2 > 0); padding(...) would allow it
>>> m == mw.parse("causal() & padding(lengths=[3, 4])")
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from maskwright import recipes
from maskwright._version import __version__
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
from maskwright.core.batches import Packed, Padded, pack, pad
from maskwright.core.bound import BoundMask
from maskwright.core.compare import Comparison
from maskwright.core.compose import by_batch, by_head
from maskwright.core.frame import Frame
from maskwright.core.json_form import from_json, to_json
from maskwright.core.mask import Mask
from maskwright.core.simplify import simplify
from maskwright.core.spans import Spans
from maskwright.core.text import parse
from maskwright.core.tiles import Tiles
from maskwright.core.why import Why
from maskwright.errors import (
    ArgumentError,
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

if TYPE_CHECKING:
    from maskwright.checks.audit import audit
    from maskwright.checks.findings import Finding, LintReport
    from maskwright.checks.lint import lint
    from maskwright.checks.probes.influence import Influence, influence
    from maskwright.checks.report import AuditFinding, AuditReport
    from maskwright.checks.trace import AttentionCall, Trace, trace
    from maskwright.core.convention import Convention
    from maskwright.core.recognize import Recognized, recognize
    from maskwright.draw.picture import picture
    from maskwright.draw.walkthrough import Walkthrough, walkthrough
    from maskwright.engine.attention import attention, explain_route
    from maskwright.engine.routes import Route
    from maskwright.engine.top_blocks import top_blocks
    from maskwright.targets.lowering import capabilities, explain_lowering, lower
    from maskwright.targets.target import Target

# What not everybody needs is loaded when it is first asked for, so that importing stays quick.
_LATER = {
    "AttentionCall": "checks.trace",
    "AuditFinding": "checks.report",
    "AuditReport": "checks.report",
    "Convention": "core.convention",
    "Finding": "checks.findings",
    "Influence": "checks.probes.influence",
    "LintReport": "checks.findings",
    "Recognized": "core.recognize",
    "Route": "engine.routes",
    "Target": "targets.target",
    "Trace": "checks.trace",
    "Walkthrough": "draw.walkthrough",
    "attention": "engine.attention",
    "audit": "checks.audit",
    "capabilities": "targets.lowering",
    "explain_lowering": "targets.lowering",
    "explain_route": "engine.attention",
    "influence": "checks.probes.influence",
    "lint": "checks.lint",
    "lower": "targets.lowering",
    "picture": "draw.picture",
    "recognize": "core.recognize",
    "top_blocks": "engine.top_blocks",
    "trace": "checks.trace",
    "walkthrough": "draw.walkthrough",
}

__all__ = [
    "ArgumentError",
    "AttentionCall",
    "AuditError",
    "AuditFinding",
    "AuditReport",
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
    "Route",
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
    "__version__",
    "attention",
    "audit",
    "blocks",
    "by_batch",
    "by_head",
    "capabilities",
    "causal",
    "chunks",
    "dense",
    "documents",
    "everything",
    "explain_lowering",
    "explain_route",
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


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'maskwright' has no attribute {name!r}")
    from maskwright.core.extras import needed_by

    try:
        with needed_by(name):
            value = getattr(importlib.import_module(f"maskwright.{_LATER[name]}"), name)
    except MissingError:
        if name != "attention":
            raise
        # Without PyTorch there is attention of numpy arrays all the same.
        value = importlib.import_module("maskwright.engine.arrays").attention
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
