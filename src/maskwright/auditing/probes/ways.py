"""Ways: how else the same model can be run, so that it has to give the same."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.auditing.model_under_test import Subject

Path = Callable[..., Any]
FLEX: Final = "flex_attention"
IMPLEMENTATIONS: Final = {
    "eager": "eager attention",
    "sdpa": "sdpa attention",
    FLEX: "flex attention",
}


def built_in(subject: Subject) -> dict[str, Path]:
    """The ways that every module has, and those that this one has."""
    module = subject.module
    if module is None:
        return {}
    found: dict[str, Path] = {"with gradients": with_gradients}
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        found["training, without dropout"] = in_training
    if any(isinstance(part, nn.MultiheadAttention) for part in module.modules()):
        found["with weights"] = _weighing(True)
        found["without weights"] = _weighing(False)
    found |= {IMPLEMENTATIONS[name]: _implemented(name) for name in _others(module)}
    found |= {"not compiled": _as_written} if _is_compiled(module) else {"compiled": compiled}
    return found


def seen_by(way: Path) -> Path:
    """The way to run a path when its attention is watched, which no compiled code lets anyone do."""
    return _as_if_compiled if way is compiled else way


# ── gradients, training, weights ──────────────────────────────────────────────────────────────


def with_gradients(model: Any, *args: Any, **given: Any) -> Any:
    """As in training, but for the flag."""
    with torch.enable_grad():
        return model(*args, **given)


def in_training(model: Any, *args: Any, **given: Any) -> Any:
    """As in training, but for dropout."""
    with without_dropout(model):
        model.train()
        try:
            with torch.enable_grad():
                return model(*args, **given)
        finally:
            model.eval()


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Every probability of dropout 0, whatever attribute it is kept in."""
    kept: list[tuple[Any, str, Any]] = []
    parts = [*model.modules()]
    configs = {id(c): c for part in parts if (c := vars(part).get("config")) is not None}
    for part in [*parts, *configs.values()]:
        for name, value in list(getattr(part, "__dict__", {}).items()):
            own = isinstance(part, nn.modules.dropout._DropoutNd) and name == "p"
            if isinstance(value, float) and (own or "drop" in name.lower()):
                kept.append((part, name, value))
                object.__setattr__(part, name, 0.0)  # a config may be frozen
    try:
        yield
    finally:
        for part, name, value in kept:
            object.__setattr__(part, name, value)


def _weighing(wanted: bool) -> Path:
    def run(model: Any, *args: Any, **given: Any) -> Any:
        real = nn.MultiheadAttention.forward

        def forward(self: Any, *inner: Any, **options: Any) -> Any:
            if len(inner) < 5:
                options["need_weights"] = wanted
            return real(self, *inner, **options)

        with _replaced(nn.MultiheadAttention, "forward", forward), torch.enable_grad():
            return model(*args, **given)

    return run


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


# ── kinds of attention ────────────────────────────────────────────────────────────────────────


def _others(module: nn.Module) -> list[str]:
    """The kinds of attention that a model of transformers could be run with, beside its own."""
    own = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if own not in IMPLEMENTATIONS or not hasattr(module, "set_attn_implementation"):
        return []
    settable = getattr(module, "_can_set_attn_implementation", None)
    if settable is not None and not settable():
        return []
    flexible = bool(getattr(module, "_supports_flex_attn", False))
    return [name for name in IMPLEMENTATIONS if name != own and (name != FLEX or flexible)]


def _implemented(name: str) -> Path:
    def run(model: Any, *args: Any, **given: Any) -> Any:
        with _kept(model), _quietly(), _uncompiled(name == FLEX):
            model.set_attn_implementation(name)
            return model(*args, **given)

    return run


@contextmanager
def _kept(model: Any) -> Iterator[None]:
    """The kind of attention is afterwards what it was, in every part that has a config."""
    configs = [vars(part).get("config") for part in model.modules()]
    kept = {
        id(c): (c, c._attn_implementation) for c in configs if hasattr(c, "_attn_implementation")
    }
    try:
        yield
    finally:
        model.set_attn_implementation(kept[id(model.config)][1])
        for config, own in kept.values():
            config._attn_implementation_internal = own


@contextmanager
def _uncompiled(wanted: bool) -> Iterator[None]:
    """Compiled code runs as it is written: flex_attention takes long to compile."""
    if not wanted:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


# ── compiled ──────────────────────────────────────────────────────────────────────────────────


def compiled(model: Any, *args: Any, **given: Any) -> Any:
    """By torch.compile, as far as it can read the model; its graphs are run as they are.

    That is enough to see what a model does otherwise while it is compiled, and it needs no compiler.
    """
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with _quietly():
        try:
            found = torch.compile(model, backend=backend, dynamic=False)(*args, **given)
        finally:
            torch.compiler.reset()
    if not graphs:
        raise RuntimeError("torch.compile could read nothing of it")
    return found


def _as_if_compiled(model: Any, *args: Any, **given: Any) -> Any:
    """Run as it is written, but told that it is being compiled."""
    kept = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        return model(*args, **given)
    finally:
        torch.compiler._is_compiling_flag = kept


def _is_compiled(module: nn.Module) -> bool:
    found = sys.modules.get("torch._dynamo")
    return found is not None and isinstance(module, found.OptimizedModule)


def _as_written(model: Any, *args: Any, **given: Any) -> Any:
    return model._orig_mod(*args, **given)


@contextmanager
def _quietly() -> Iterator[None]:
    """What torch has to say about compiling is no matter of who asks for an audit."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
