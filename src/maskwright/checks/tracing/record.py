"""Watching a model run: which module is at work, and every attention call on the way.

Kernels of torch's are met by a function mode, attention that is written by hand by a dispatch mode,
maskwright's own where it is computed. What is met runs as it would have; its mask is read aside,
with both modes off. Hooks are none: nn's fused layers are not taken where there are some.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import threading
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from maskwright.checks.tracing.calls import AttentionCall, Shape, shrink
from maskwright.checks.tracing.flow import Flow, Found, Step, is_plain
from maskwright.checks.tracing.kernels import by_flex, by_lengths, by_native, by_sdpa
from maskwright.core.arrays import kind_of
from maskwright.engine import attention as engine
from maskwright.engine.inputs import bind
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.core.arrays import BoolArray

NN: Final = {"torch.nn.modules.activation", "torch.nn.modules.transformer"}
FLEX: Final = "torch.nn.attention.flex_attention"
MASKS: Final = ("attn_mask", "src_mask", "key_padding_mask", "src_key_padding_mask")


@dataclass(eq=False)
class Frame:
    """A module at work, or nn's attention function called without one."""

    name: str | None
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    entered: Shape | None
    left: Shape | None = None
    function: Callable[..., Any] | None = None

    @property
    def is_mha(self) -> bool:
        """Is it nn's attention?"""
        return self.function is not None or isinstance(self.module, nn.MultiheadAttention)

    def given(self) -> dict[str, Any]:
        """Its arguments by name, none if they do not fit."""
        called = self.function or type(self.module).forward
        own = () if self.function else (self.module,)
        try:
            return dict(inspect.signature(called).bind(*own, *self.args, **self.kwargs).arguments)
        except (TypeError, ValueError):
            return {}

    def masks(self) -> dict[str, Any]:
        """Its mask arguments by name."""
        given = self.given()
        return {name: given[name] for name in MASKS if given.get(name) is not None}


@dataclass(eq=False)
class Draft:
    """A call that is met, while the module around it has not come to its end."""

    frame: Frame | None
    layer: str
    kernel: str
    shapes: tuple[Shape, Shape, Shape, Shape]
    seen: BoolArray
    masks: dict[str, Any]
    convention: str
    cross: bool
    after_softmax: bool = False

    def finish(self, index: int) -> AttentionCall:
        """The call, with all that is known of it."""
        q, k, v, out = self.shapes
        batch = q[0] if q else out[0] if out else self.seen.shape[0]
        heads = q[1] if q else out[1] if out else self.seen.shape[1]
        ends = (None, None) if self.frame is None else (self.frame.entered, self.frame.left)
        way = (ends[0], q, (batch, heads, *self.seen.shape[2:]), out, ends[1])
        return AttentionCall(
            index,
            self.layer,
            self.kernel,
            q,
            k,
            v,
            out,
            tuple(shape for shape in way if shape),
            self.seen,
            self.masks,
            self.convention,
            self.after_softmax,
            self.cross,
        )


@dataclass(eq=False)
class Recorder:
    """What was met so far. `calls` and `outputs` are complete when the recording is over.

    `outputs` holds the output of each call, in the same order; `modules` the name and the first
    output tensor of each module, in the order in which they end.
    """

    calls: list[AttentionCall] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    modules: list[tuple[str, torch.Tensor]] = field(default_factory=list)


@contextlib.contextmanager
def recording(model: Any, *, outputs: bool = False, modules: bool = False) -> Iterator[Recorder]:
    """Record every attention call that is made inside the `with`, by this thread.

    Modules are named as in `model.named_modules()`, or, if the model is a plain function, as in
    the outermost module that it calls. With `outputs` and `modules` their outputs are kept too.
    Compiled code runs eagerly meanwhile.

    >>> import torch
    >>> from maskwright.checks.trace import recording
    >>> layer = torch.nn.MultiheadAttention(8, 2)
    >>> with recording(layer, outputs=True) as recorder:
    ...     _ = layer(*[torch.ones(4, 1, 8)] * 3)
    >>> recorder.calls, recorder.outputs[0].shape
    ([(model): mha, everything(), none], torch.Size([1, 2, 4, 4]))
    """
    if not callable(model):
        raise ArgumentError(
            f"recording: the model is {kind_of(model)}. Give a module, or a function that calls one."
        )
    watch = _Watch(Recorder(), keep_outputs=outputs, keep_modules=modules)
    owner = getattr(model, "__self__", model)
    if isinstance(owner, nn.Module):
        watch.name(owner)
    with contextlib.ExitStack() as stack:
        stack.callback(watch.finish)
        for place, attribute, value in watch.replacements():
            stack.callback(setattr, place, attribute, getattr(place, attribute))
            setattr(place, attribute, value)
        stack.enter_context(_eagerly())
        stack.enter_context(watch.dispatch)
        stack.enter_context(watch.functions)
        yield watch.recorder


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Compiled code runs as it was written; flex_attention does not complain about that."""
    if not {"torch._dynamo", FLEX} & sys.modules.keys():
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Meets the kernels that torch has as functions."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run it, and take note of it if it is attention."""
        return self.watch.function(func, types, args, kwargs or {})


class _Dispatch(TorchDispatchMode):  # type: ignore[misc]
    """Meets every operation below."""

    supports_higher_order_operators = True

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run it, and take note of it."""
        return self.watch.operation(func, args, kwargs or {})


class _Watch:
    """One recording: the modules at work, what is known of numbers, and what was met."""

    def __init__(self, recorder: Recorder, *, keep_outputs: bool, keep_modules: bool) -> None:
        self.recorder = recorder
        self.functions, self.dispatch = _Functions(self), _Dispatch(self)
        self._keep_outputs, self._keep_modules = keep_outputs, keep_modules
        self._thread = threading.get_ident()
        self._flow = Flow()
        self._names: dict[int, str] = {}
        self._named: list[Any] = []  # kept, so that no other module comes to have the same id
        self._frames: list[Frame] = []
        self._drafts: list[Draft] = []
        self._away = 0  # how deep in what is not to be met
        self._entering = False
        self._kernels: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._sdpa,
            F.multi_head_attention_forward: self._mha,
            torch._native_multi_head_attention: self._native,
            torch._transformer_encoder_layer_fwd: self._encoder,
            F.dropout: self._dropout,
            torch.dropout: self._dropout,
            torch.native_dropout: self._dropout,
        }

    def name(self, root: Any) -> None:
        """Learn the names and the parameters of a model."""
        for name, module in root.named_modules():
            self._names.setdefault(id(module), _plain_name(name))
        self._named.append(root)
        self._flow.learn(root.parameters())

    def finish(self) -> None:
        """All modules have come to their end."""
        self.recorder.calls.extend(draft.finish(i) for i, draft in enumerate(self._drafts))

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """What is put in the place of what, while it lasts."""
        wrapped: list[tuple[Any, str, Any]] = [
            (nn.Module, "__call__", self._calling),
            (torch.overrides, "has_torch_function", self._asked),
            (F, "has_torch_function", self._asked_once),
            (engine, "_eagerly", self._engine),
        ]
        return [(place, name, wrap(getattr(place, name))) for place, name, wrap in wrapped]

    # ── modules ───────────────────────────────────────────────────────────────────────────────

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(module, *args, **kwargs)
            with self._aside():
                if id(module) not in self._names and all(f.name is None for f in self._frames):
                    self.name(module)
                entered = _shape(_first((*args, *kwargs.values())))
                frame = Frame(self._names.get(id(module)), module, args, kwargs, entered)
            self._frames.append(frame)
            try:
                out = original(module, *args, **kwargs)
            finally:
                self._frames.pop()
                frame.args, frame.kwargs = (), {}
            with self._aside():
                first = _first((out,))
                frame.left = _shape(first)
                if self._keep_modules and frame.name is not None and first is not None:
                    self.recorder.modules.append((frame.name, _kept(first)))
            return out

        return call

    @property
    def _frame(self) -> Frame | None:
        return self._frames[-1] if self._frames else None

    @property
    def _layer(self) -> str:
        return next((f.name for f in reversed(self._frames) if f.name is not None), "")

    def _split(self, count: int, queries: int) -> tuple[int, int]:
        """How many sequences and heads these planes are of."""
        for frame in reversed(self._frames):
            heads = frame.given().get("num_heads") if frame.function else None
            if isinstance(frame.module, nn.MultiheadAttention):
                heads = frame.module.num_heads
            if heads and not count % heads:
                return count // heads, heads
            shape = frame.entered or ()
            if len(shape) > 1:
                batch = shape[1] if shape[0] == queries and shape[1] != queries else shape[0]
                return (batch, count // batch) if batch and not count % batch else (count, 1)
        return count, 1

    # ── being met, or not ─────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """What runs here is not met."""
        self._away += 1
        try:
            with contextlib.ExitStack() as stack:
                if _python_dispatch._get_current_dispatch_mode() is self.dispatch:
                    stack.enter_context(_python_dispatch._pop_mode_temporarily())
                if torch.overrides._get_current_function_mode() is self.functions:
                    stack.enter_context(torch.overrides._pop_mode_temporarily())
                yield
        finally:
            self._away -= 1

    def _is_off(self) -> bool:
        # Inside of backward, what was met before is only computed again.
        return self._away > 0 or torch._C._current_graph_task_id() != -1

    def _asked(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """The layers of nn ask whether somebody looks on, and if so leave their fused paths."""

        def has_torch_function(args: Any) -> bool:
            asks = sys._getframe(1).f_globals.get("__name__")
            return self._without_us(original, args) if asks in NN else original(args)

        return has_torch_function

    def _asked_once(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """The attention function of nn asks first to be met, then for its inside to run."""

        def has_torch_function(args: Any) -> bool:
            if not self._entering:
                return original(args)
            self._entering = False
            return self._without_us(original, args)

        return has_torch_function

    def _without_us(self, original: Callable[..., bool], args: Any) -> bool:
        if torch.overrides._get_current_function_mode() is not self.functions:
            return original(args)
        with torch.overrides._pop_mode_temporarily():
            return original(args)

    # ── what is met ───────────────────────────────────────────────────────────────────────────

    def function(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of torch's."""
        if self._is_off() or any(kind.__module__.startswith("maskwright.") for kind in types):
            return func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):
            return self._higher(func, args, kwargs)
        kernel = self._kernels.get(func)
        return func(*args, **kwargs) if kernel is None else kernel(func, args, kwargs)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation below the functions."""
        if self._is_off() or isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled():  # here larger operations come whole
            with self.dispatch:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        with self._aside():
            name = func.overloadpacket.__name__
            if name.startswith("_scaled_dot_product_") and "backward" not in name:
                self._fused(func, args, kwargs, out)
            else:
                found = self._flow.see(func, args, out)
                if found is not None:
                    self._by_hand(found)
        return out

    def _sdpa(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not all(_is_real(x) for x in args[:3]):  # one of many, inside of vmap: met below
            return func(*args, **kwargs)
        with self._aside():
            out = func(*args, **kwargs)
            q, k, v, mask, is_causal, scale = _sdpa_given(*args, **kwargs)
            self._attended(out, q, k, v, mask, is_causal, scale)
        return out

    def _fused(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """What SDPA comes to, where it was called by something else than Python."""
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        self._attended(
            out[0],
            given["query"],
            given["key"],
            given["value"],
            given.get("attn_mask", given.get("attn_bias")),
            bool(given.get("is_causal")),
            given.get("scale"),
        )

    def _attended(
        self, out: Any, q: Any, k: Any, v: Any, mask: Any, is_causal: bool, scale: float | None
    ) -> None:
        if not all(_is_real(x) for x in (q, k, v)):
            return
        cells = by_sdpa(q, k, mask, is_causal, scale)
        convention = "is_causal" if is_causal else "nested tensor" if q.is_nested else "none"
        if mask is not None:
            convention = _convention(mask, "keeps")
        shapes = [self._as_4d(x) for x in (q, k, v, out)]
        batch = shapes[0][0]
        seen = cells.reshape(batch, -1, *cells.shape[-2:])
        masks = {} if mask is None else {"attn_mask": mask}
        cross = self._crosses(q, k)
        self._draft("sdpa", shapes, seen, masks, convention, out, cross)

    def _mha(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The attention function of nn: what is inside is met as such."""
        around = self._frame
        if around is None or not around.is_mha:
            entered = _shape(args[0]) if args else None
            around = Frame(None, None, args, kwargs, entered, function=func)
            self._frames.append(around)
        self._entering = True
        try:
            with self.functions:
                out = func(*args, **kwargs)
        finally:
            self._entering = False
            if around.function is not None:
                self._frames.pop()
                around.args, around.kwargs = (), {}
        around.left = _shape(out[0])
        return out

    def _native(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._aside():
            out = func(*args, **kwargs)
            q, _, _, dim, heads, mask, kind = _native_given(*args, **kwargs)
            self._fast("mha fast path", q, dim, heads, mask, kind, out[0])
        return out

    def _encoder(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._aside():
            out = func(*args, **kwargs)
            q, dim, heads, mask, kind = _encoder_given(*args, **kwargs)
            self._fast("encoder fast path", q, dim, heads, mask, kind, out)
        return out

    def _fast(
        self, kernel: str, q: Any, dim: int, heads: int, mask: Any, kind: int | None, out: Any
    ) -> None:
        if not _is_real(q):
            return
        nested = bool(q.is_nested)
        cells = by_lengths(q, q) if nested else None
        length = q.shape[1] if cells is None else cells.shape[-1]
        shape = (q.size(0), heads, length, length)
        if cells is None:
            cells = by_native(mask, kind, shape)
        planes = (shape[0], heads, length, dim // heads)
        convention = "nested tensor" if nested else "none"
        frame = self._frame
        masks = {} if frame is None else frame.masks()
        if mask is not None:
            masks = masks or {"mask": mask}
            convention = "bool, True drops"  # numbers too are taken for truth values here
        self._draft(kernel, [planes] * 4, cells, masks, convention, out, cross=False)

    def _dropout(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._aside():
            out = func(*args, **kwargs)
            given = args[0] if args else kwargs.get("input")
            first = out[0] if isinstance(out, tuple) else out
            if first is not given:
                self._flow.drop_out(given, first)
        return out

    def _higher(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that takes functions: flex_attention is one."""
        with self._aside():
            out = func(*args, **kwargs)
            if func.__name__ == "flex_attention" and all(_is_real(x) for x in args[:3]):
                q, k, v, score_mod, block_mask = args[:5]
                shape = (*q.shape[:3], k.shape[2])
                mask_mod = block_mask[-1]
                plain = "_identity" in getattr(score_mod, "__name__", "")
                cells = by_flex(None if plain else score_mod, mask_mod, shape, q.device)
                masks = {"mask_mod": mask_mod}
                if "noop" in getattr(mask_mod, "__name__", ""):
                    masks = {}
                if not plain:
                    masks["score_mod"] = score_mod
                convention = " + ".join(masks) or "none"
                shapes = [self._as_4d(x) for x in (q, k, v, out[0])]
                cross = self._crosses(q, k)
                self._draft("flex", shapes, cells, masks, convention, out[0], cross)
        return out

    def _engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Attention of maskwright's own, whose mask is known."""

        def attend(q: Any, k: Any, v: Any, mask: Any, q_start: Any, *rest: Any) -> Any:
            if threading.get_ident() != self._thread or self._is_off():
                return original(q, k, v, mask, q_start, *rest)
            with self._aside():
                out = original(q, k, v, mask, q_start, *rest)
                bound = bind(mask, (*q.shape[:3], k.shape[2]), q_start)
                cells = torch.from_numpy(bound.dense())
                shapes = [tuple(x.shape) for x in (q, k, v, out[0])]
                masks = {} if mask is None else {"mask": mask}
                convention = "none" if mask is None else "a mask"
                cross = self._crosses(q, k)
                self._draft("maskwright", shapes, cells, masks, convention, out[0], cross)
            return out

        return attend

    def _by_hand(self, found: Found) -> None:
        cells = found.cells
        lead, (queries, keys) = cells.shape[:-2], cells.shape[-2:]
        if len(lead) == 1:
            batch, heads = self._split(lead[0], queries)
        else:
            batch, heads = math.prod(lead[:-1]), lead[-1] if lead else 1
        seen = cells.reshape(batch, heads, queries, keys)

        def shape(count: int, length: int, dim: int) -> Shape:
            return (batch, count // batch if batch and not count % batch else 1, length, dim)

        product = found.product
        q: Shape = ()
        k: Shape = ()
        cross = queries != keys
        if product is not None:
            q = (batch, heads, queries, product.inner)
            k = shape(product.count, keys, product.inner)
            cross = not product.origins[0] & product.origins[1]
        v = shape(found.values.shape[0], keys, found.values.shape[-1])
        planes = (batch, heads, queries, found.values.shape[-1])
        out = found.out
        if out.numel() == math.prod(planes):
            out = out.reshape(planes)
        self._draft(
            "softmax",
            [q, k, v, planes],
            seen,
            _given(found.steps),
            found.convention,
            out,
            cross,
            after_softmax=found.after_softmax,
        )

    # ── taking note ───────────────────────────────────────────────────────────────────────────

    def _crosses(self, q: Any, k: Any) -> bool:
        """Do keys come from elsewhere than queries?"""
        ours, theirs = self._flow.origins(q), self._flow.origins(k)
        if q is k or ours is None or theirs is None:
            return bool(q is not k and not q.is_nested and q.shape[-2] != k.shape[-2])
        return not ours & theirs

    def _as_4d(self, x: Any) -> Shape:
        """(batch, heads, length, head_dim)."""
        if x.is_nested:
            parts = [tuple(part.shape) for part in x.unbind()]
            longest = max((shape[-2] for shape in parts), default=0)
            return (len(parts), parts[0][0] if parts else 0, longest, x.size(-1))
        *lead, length, dim = x.shape
        if len(lead) == 1:
            return (*self._split(lead[0], length), length, dim)
        return (math.prod(lead[:-1]), lead[-1] if lead else 1, length, dim)

    def _draft(
        self,
        kernel: str,
        shapes: list[Shape],
        cells: torch.Tensor,
        masks: dict[str, Any],
        convention: str,
        out: Any,
        cross: bool,
        *,
        after_softmax: bool = False,
    ) -> None:
        frame, layer = self._frame, self._layer
        if kernel == "encoder fast path":
            layer = f"{layer}.self_attn".removeprefix(".")
        elif frame is not None and frame.is_mha and kernel in ("sdpa", "softmax"):
            kernel, masks = "mha", frame.masks() or masks
            if convention not in ("is_causal", "none") and not after_softmax:
                kinds = (_convention(mask, "drops") for mask in masks.values())
                convention = " + ".join(dict.fromkeys(kinds))
        q, k, v, o = shapes
        self._drafts.append(
            Draft(
                frame,
                layer,
                kernel,
                (q, k, v, o),
                shrink(cells.detach().cpu().numpy()),
                {name: _kept(mask) for name, mask in masks.items()},
                convention,
                cross,
                after_softmax,
            )
        )
        if self._keep_outputs:
            self.recorder.outputs.append(_kept(out))


# ── arguments ─────────────────────────────────────────────────────────────────────────────────


def _sdpa_given(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - torch's signature
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001
) -> tuple[Any, ...]:
    return query, key, value, attn_mask, is_causal, scale


def _native_given(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,  # noqa: ARG001 - torch's signature
    qkv_bias: Any,  # noqa: ARG001
    proj_weight: Any,  # noqa: ARG001
    proj_bias: Any,  # noqa: ARG001
    mask: Any = None,
    need_weights: bool = True,  # noqa: ARG001
    average_attn_weights: bool = True,  # noqa: ARG001
    mask_type: int | None = None,
) -> tuple[Any, ...]:
    return query, key, value, embed_dim, num_head, mask, mask_type


def _encoder_given(
    src: Any,
    embed_dim: int,
    num_heads: int,
    *rest: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> tuple[Any, ...]:
    mask = rest[15] if len(rest) > 15 else mask
    mask_type = rest[16] if len(rest) > 16 else mask_type
    return src, embed_dim, num_heads, mask, mask_type


def _convention(mask: Any, says: str) -> str:
    """How a mask argument is read; `says` is what True does."""
    if hasattr(mask, "_materialize"):
        return type(mask).__name__
    if getattr(mask, "dtype", None) == torch.bool:
        return f"bool, True {says}"
    return "added" if isinstance(mask, torch.Tensor) else "a mask"


def _given(steps: list[Step]) -> dict[str, Any]:
    """The masks by name, first those that hide something."""

    def hides(step: Step) -> bool:
        dropped = step.drops()
        return dropped is not None and bool(dropped.any())

    masks: dict[str, Any] = {}
    for step in sorted(steps, key=hides, reverse=True):
        name, more = step.name, 2
        while name in masks:
            name, more = f"{step.name} {more}", more + 1
        masks[name] = step.mask
    return masks


# ── tensors ───────────────────────────────────────────────────────────────────────────────────


def _first(values: Any) -> torch.Tensor | None:
    """The first tensor in what a module takes or gives."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        inside = value.values() if isinstance(value, dict) else value
        if isinstance(value, (tuple, list, dict)):
            found = _first(inside)
            if found is not None:
                return found
    return None


def _shape(x: Any) -> Shape | None:
    if x is None:
        return None
    if not x.is_nested:
        return tuple(x.shape)
    parts = [tuple(part.shape) for part in x.unbind()]
    return (len(parts), *(max(sizes) for sizes in zip(*parts, strict=True)))


def _is_real(x: Any) -> bool:
    """Has it numbers that can be read?"""
    return is_plain(x) or (isinstance(x, torch.Tensor) and x.is_nested)


def _kept(x: Any) -> Any:
    """A copy of a tensor, which nobody changes; anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_nested:
        return x.detach().to_padded_tensor(0.0)
    return x.detach().clone() if is_plain(x) else x.detach()


def _plain_name(name: str) -> str:
    """The name without what torch.compile puts in front."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
