"""The watch: every attention call on the way, whatever it is written in, becomes a draft.

A function mode finds PyTorch's attention functions, a dispatch mode finds attention made of matrix
products and a softmax, and an observer finds `maskwright.attention`. Every call runs unchanged; its
mask is read with both modes disabled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from maskwright.engine.validate import EVERYTHING
from maskwright.tracing.arguments import (
    convention_of,
    encoder_given,
    masks_of,
    native_given,
    sdpa_given,
)
from maskwright.tracing.calls import shrink
from maskwright.tracing.flow import Flow
from maskwright.tracing.frames import Draft, Frame, steps_of
from maskwright.tracing.kernels import by_flex, by_lengths, by_native, by_sdpa
from maskwright.tracing.stage import Stage
from maskwright.tracing.tensors import is_real, kept, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.engine.params import AttentionParams
    from maskwright.tracing.calls import Shape
    from maskwright.tracing.nodes import Found
    from maskwright.tracing.record import Recorder


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Meets the kernels that torch has as functions."""

    def __init__(self, watch: Watch) -> None:
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

    def __init__(self, watch: Watch) -> None:
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


class Watch:
    """One recording: the modules at work, what is known of numbers, and what was met."""

    def __init__(self, recorder: Recorder, *, keep_outputs: bool, keep_modules: bool) -> None:
        self.recorder = recorder
        self.functions, self.dispatch = _Functions(self), _Dispatch(self)
        self._keep_outputs = keep_outputs
        self._flow = Flow()
        self._drafts: list[Draft] = []
        modules = recorder.modules if keep_modules else None
        self.stage = Stage(self.functions, self.dispatch, self._flow.learn, modules)
        self._kernels: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._sdpa,
            F.multi_head_attention_forward: self._mha,
            torch._native_multi_head_attention: self._native,
            torch._transformer_encoder_layer_fwd: self._encoder,
            F.dropout: self._dropout,
            torch.dropout: self._dropout,
            torch.native_dropout: self._dropout,
        }

    def finish(self) -> None:
        """All modules have come to their end."""
        steps = steps_of(self._drafts)
        self.recorder.calls.extend(
            draft.finish(i, step)
            for i, (draft, step) in enumerate(zip(self._drafts, steps, strict=True))
        )

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """What is put in the place of what, while it lasts."""
        wrapped: list[tuple[Any, str, Any]] = [
            (nn.Module, "__call__", self.stage.calling),
            (torch.overrides, "has_torch_function", self.stage.asked),
            (F, "has_torch_function", self.stage.asked_once),
        ]
        return [(place, name, wrap(getattr(place, name))) for place, name, wrap in wrapped]

    # ── what is met ───────────────────────────────────────────────────────────────────────────

    def function(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of torch's."""
        if self.stage.is_off() or any(kind.__module__.startswith("maskwright.") for kind in types):
            return func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):
            return self._higher(func, args, kwargs)
        kernel = self._kernels.get(func)
        return func(*args, **kwargs) if kernel is None else kernel(func, args, kwargs)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation below the functions."""
        if self.stage.is_off() or isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled():  # here larger operations come whole
            with self.dispatch:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        with self.stage.aside():
            name = func.overloadpacket.__name__
            if name.startswith("_scaled_dot_product_") and "backward" not in name:
                self._fused(func, args, kwargs, out)
            else:
                found = self._flow.see(func, args, out)
                if found is not None:
                    self._by_hand(found)
        return out

    def _sdpa(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not all(is_real(x) for x in args[:3]):  # one of many, inside of vmap: met below
            return func(*args, **kwargs)
        with self.stage.aside():
            out = func(*args, **kwargs)
            q, k, v, mask, is_causal, scale = sdpa_given(*args, **kwargs)
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
        if not all(is_real(x) for x in (q, k, v)):
            return
        cells = by_sdpa(q, k, mask, is_causal, scale)
        convention = "is_causal" if is_causal else "nested tensor" if q.is_nested else "none"
        if mask is not None:
            convention = convention_of(mask, "keeps")
        shapes = [self._as_4d(x) for x in (q, k, v, out)]
        batch = shapes[0][0]
        seen = cells.reshape(batch, -1, *cells.shape[-2:])
        masks = {} if mask is None else {"attn_mask": mask}
        cross = self._crosses(q, k)
        self._draft("sdpa", shapes, seen, masks, convention, out, cross)

    def _mha(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The attention function of nn: what is inside is met as such."""
        around = self.stage.frame
        if around is None or not around.is_mha:
            entered = shape_of(args[0]) if args else None
            around = Frame(None, None, args, kwargs, entered, function=func)
            self.stage.frames.append(around)
        self.stage.entering = True
        try:
            with self.functions:
                out = func(*args, **kwargs)
        finally:
            self.stage.entering = False
            if around.function is not None:
                self.stage.frames.pop()
                around.args, around.kwargs = (), {}
        around.left = shape_of(out[0])
        return out

    def _native(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.stage.aside():
            out = func(*args, **kwargs)
            q, _, _, dim, heads, mask, kind = native_given(*args, **kwargs)
            self._fast("mha fast path", q, dim, heads, mask, kind, out[0])
        return out

    def _encoder(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.stage.aside():
            out = func(*args, **kwargs)
            q, dim, heads, mask, kind = encoder_given(*args, **kwargs)
            self._fast("encoder fast path", q, dim, heads, mask, kind, out)
        return out

    def _fast(
        self, kernel: str, q: Any, dim: int, heads: int, mask: Any, kind: int | None, out: Any
    ) -> None:
        if not is_real(q):
            return
        nested = bool(q.is_nested)
        cells = by_lengths(q, q) if nested else None
        length = q.shape[1] if cells is None else cells.shape[-1]
        shape = (q.size(0), heads, length, length)
        if cells is None:
            cells = by_native(mask, kind, shape)
        planes = (shape[0], heads, length, dim // heads)
        convention = "nested tensor" if nested else "none"
        frame = self.stage.frame
        masks = {} if frame is None else frame.masks()
        if mask is not None:
            masks = masks or {"mask": mask}
            convention = "bool, True drops"  # numbers too are taken for truth values here
        self._draft(kernel, [planes] * 4, cells, masks, convention, out, cross=False)

    def _dropout(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.stage.aside():
            out = func(*args, **kwargs)
            given = args[0] if args else kwargs.get("input")
            first = out[0] if isinstance(out, tuple) else out
            if first is not given:
                self._flow.drop_out(given, first)
        return out

    def _higher(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that takes functions: flex_attention is one."""
        with self.stage.aside():
            out = func(*args, **kwargs)
            if func.__name__ == "flex_attention" and all(is_real(x) for x in args[:3]):
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

    def observe(
        self, params: AttentionParams, tensors: tuple[Any, ...], compute: Callable[[], Any]
    ) -> Any:
        """Compute a call of `maskwright.attention` and record it."""
        if self.stage.is_elsewhere() or self.stage.is_off():  # a context may run in another thread
            return compute()
        with self.stage.aside():
            out, lse = compute()
            cells = torch.from_numpy(params.mask.dense())
            shapes = [tuple(x.shape) for x in (*tensors, out)]
            mask = params.mask.mask
            masks = {} if mask is EVERYTHING else {"mask": mask}
            convention = "none" if mask is EVERYTHING else "a mask"
            cross = self._crosses(*tensors[:2])
            self._draft("maskwright", shapes, cells, masks, convention, out, cross)
        return out, lse

    def _by_hand(self, found: Found) -> None:
        cells = found.cells
        lead, (queries, keys) = cells.shape[:-2], cells.shape[-2:]
        if len(lead) == 1:
            batch, heads = self.stage.split(lead[0], queries)
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
            masks_of(found.steps),
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
            return (*self.stage.split(lead[0], length), length, dim)
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
        frame, layer = self.stage.frame, self.stage.layer
        if kernel == "encoder fast path":
            layer = f"{layer}.self_attn".removeprefix(".")
        elif frame is not None and frame.is_mha and kernel in ("sdpa", "softmax"):
            kernel, masks = "mha", frame.masks() or masks
            if convention not in ("is_causal", "none") and not after_softmax:
                kinds = (convention_of(mask, "drops") for mask in masks.values())
                convention = " + ".join(dict.fromkeys(kinds))
        q, k, v, o = shapes
        self._drafts.append(
            Draft(
                frame,
                layer,
                kernel,
                (q, k, v, o),
                shrink(cells.detach().cpu().numpy()),
                {name: kept(mask) for name, mask in masks.items()},
                convention,
                cross,
                after_softmax,
                0 if frame is None else frame.met,
            )
        )
        if frame is not None:
            frame.met += 1
        if self._keep_outputs:
            self.recorder.outputs.append(kept(out))
