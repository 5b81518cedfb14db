"""`AttentionTracer`: finds the attention calls of a forward pass and computes their masks.

A torch function mode finds PyTorch's attention functions, a dispatch mode finds attention that is
composed of matmuls and a softmax, and an observer finds `maskwright.attention`. Every call runs
unchanged; its mask is computed with both modes disabled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's name for it
from torch import nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from maskwright.engine.validate import EVERYTHING
from maskwright.tracing import kernels
from maskwright.tracing.calls import (
    AttentionCall,
    ModuleCall,
    ModuleStack,
    PendingCall,
    finish_calls,
    has_data,
    shape_of,
    shrink,
    snapshot,
)
from maskwright.tracing.provenance import Provenance
from maskwright.tracing.softmax import masks_by_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.engine.call import Call
    from maskwright.tracing.calls import Shape
    from maskwright.tracing.softmax import ManualAttention


class AttentionTracer:
    """Traces the attention calls of the current thread.

    Args:
        outputs: List to which the output of each attention call is appended, or None.
        module_outputs: List to which the name and output of each module is appended, or None.
    """

    def __init__(
        self,
        *,
        outputs: list[torch.Tensor] | None,
        module_outputs: list[tuple[str, torch.Tensor]] | None,
    ) -> None:
        self.function_mode, self.dispatch_mode = _FunctionMode(self), _DispatchMode(self)
        self._outputs = outputs
        self._provenance = Provenance()
        self._pending: list[PendingCall] = []
        self.modules = ModuleStack(
            self.function_mode, self.dispatch_mode, self._provenance.add_parameters, module_outputs
        )
        self._recorders: dict[Any, Callable[..., None]] = {  # of the arguments and the output
            F.scaled_dot_product_attention: self._sdpa,
            torch._native_multi_head_attention: self._mha_fast_path,
            torch._transformer_encoder_layer_fwd: self._encoder_fast_path,
            F.dropout: self._dropout,
            torch.dropout: self._dropout,
            torch.native_dropout: self._dropout,
        }

    def finish(self) -> list[AttentionCall]:
        """Returns the calls, after all modules have returned."""
        return finish_calls(self._pending)

    def patches(self) -> list[tuple[Any, str, Any]]:
        """Attributes of torch to replace while tracing: object, name and value."""
        wrappers: list[tuple[Any, str, Any]] = [
            (nn.Module, "__call__", self.modules.wrap_module_call),
            (torch.overrides, "has_torch_function", self.modules.wrap_has_torch_function),
            (F, "has_torch_function", self.modules.wrap_functional_has_torch_function),
        ]
        return [(target, name, wrap(getattr(target, name))) for target, name, wrap in wrappers]

    def observe(self, call: Call, compute: Callable[[], Any]) -> Any:
        """Observer of `maskwright.attention`: computes a call and records it."""
        # A copied context may run the observer in another thread.
        if self.modules.is_other_thread() or self.modules.is_paused():
            return compute()
        with self.modules.paused():
            out, lse = compute()
            bound = call.bound
            assert bound is not None  # a call in a compiled function is not observed
            mask = bound.mask
            self._record(
                "maskwright",
                [tuple(x.shape) for x in (call.q, call.k, call.v, out)],
                torch.from_numpy(bound.dense()),
                masks={} if mask is EVERYTHING else {"mask": mask},
                convention="none" if mask is EVERYTHING else "a mask",
                cross=self._is_cross(call.q, call.k),
                out=out,
            )
        return out, lse

    # ── the two modes ─────────────────────────────────────────────────────────────────────────

    def call_function(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a function of torch and records it if it is attention."""
        ours = any(kind.__module__.startswith("maskwright.") for kind in types)
        if self.modules.is_paused() or ours:
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._mha(func, args, kwargs)
        # SDPA inside vmap: its operator is recorded instead.
        in_vmap = func is F.scaled_dot_product_attention and not all(map(has_data, args[:3]))
        recorder = None if in_vmap else self._recorders.get(func)
        if recorder is None and not isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        with self.modules.paused():
            out = func(*args, **kwargs)
            if recorder is not None:
                recorder(args, kwargs, out)
            elif func.__name__ == "flex_attention" and all(map(has_data, args[:3])):
                self._flex(args, out[0])
        return out

    def call_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an ATen operator and records its provenance."""
        if self.modules.is_paused() or isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled():  # composite operators are not decomposed there
            with self.dispatch_mode:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        with self.modules.paused():
            name = func.overloadpacket.__name__
            if name.startswith("_scaled_dot_product_") and "backward" not in name:
                # SDPA that was not called from Python
                self._record_sdpa(kernels.bind_sdpa(func, args, kwargs), out[0])
            else:
                found = self._provenance.record(func, args, out)
                if found is not None:
                    self._record_manual(found)
        return out

    # ── functions of torch ────────────────────────────────────────────────────────────────────

    def _sdpa(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        operator = torch.ops.aten.scaled_dot_product_attention.default
        self._record_sdpa(kernels.bind_sdpa(operator, args, kwargs), out)

    def _mha(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """F.multi_head_attention_forward: the attention call is recorded inside it."""
        call = self.modules.current
        if call is None or not call.is_mha:
            input_shape = shape_of(args[0]) if args else None
            call = ModuleCall(None, None, args, kwargs, input_shape, function=func)
            self.modules.calls.append(call)
        self.modules.entering_mha = True
        try:
            with self.function_mode:
                out = func(*args, **kwargs)
        finally:
            self.modules.entering_mha = False
            if call.function is not None:
                self.modules.calls.pop()
                call.args, call.kwargs = (), {}
        call.output_shape = shape_of(out[0])
        return out

    def _mha_fast_path(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        operator = torch.ops.aten._native_multi_head_attention.default
        call = kernels.bind_fast_path(operator, args, kwargs)
        self._record_fast_path("mha fast path", call, out[0])

    def _encoder_fast_path(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        operator = torch.ops.aten._transformer_encoder_layer_fwd.default
        call = kernels.bind_fast_path(operator, args, kwargs)
        self._record_fast_path("encoder fast path", call, out)

    def _dropout(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        x = args[0] if args else kwargs.get("input")
        first = out[0] if isinstance(out, tuple) else out
        if first is not x:
            self._provenance.record_dropout(x, first)

    def _flex(self, args: tuple[Any, ...], out: Any) -> None:
        """The operator of flex_attention, which takes functions."""
        q, k, v, score_mod, block_mask = args[:5]
        mask_mod = block_mask[-1]
        if "_identity" in getattr(score_mod, "__name__", ""):
            score_mod = None
        masks = {"mask_mod": mask_mod, "score_mod": score_mod}
        if "noop" in getattr(mask_mod, "__name__", ""):
            del masks["mask_mod"]
        if score_mod is None:
            del masks["score_mod"]
        self._record(
            "flex",
            [self._shape_4d(x) for x in (q, k, v, out)],
            kernels.flex_visible(score_mod, mask_mod, (*q.shape[:3], k.shape[2]), q.device),
            masks=masks,
            convention=" + ".join(masks) or "none",
            cross=self._is_cross(q, k),
            out=out,
        )

    # ── recording ─────────────────────────────────────────────────────────────────────────────

    def _record_sdpa(self, call: kernels.SdpaArgs, out: Any) -> None:
        if not all(has_data(x) for x in call[:3]):
            return
        visible = kernels.sdpa_visible(call)
        if call.mask is not None:
            convention = kernels.describe_convention(call.mask, "keeps")
        else:
            convention = "nested tensor" if call.q.is_nested else "none"
            convention = "is_causal" if call.is_causal else convention
        shapes = [self._shape_4d(x) for x in (call.q, call.k, call.v, out)]
        self._record(
            "sdpa",
            shapes,
            visible.reshape(shapes[0][0], -1, *visible.shape[-2:]),
            masks={} if call.mask is None else {"attn_mask": call.mask},
            convention=convention,
            cross=self._is_cross(call.q, call.k),
            out=out,
        )

    def _record_fast_path(self, kernel: str, call: kernels.FastPathArgs, out: Any) -> None:
        x = call.x
        if not has_data(x):
            return
        visible = kernels.nested_visible(x, x) if x.is_nested else kernels.fast_path_visible(call)
        around = self.modules.current
        masks = {} if around is None else around.masks()
        convention = "nested tensor" if x.is_nested else "none"
        if call.mask is not None:
            masks = masks or {"mask": call.mask}
            convention = "bool, True masks"  # floats too are converted to bool
        head_dim = call.embed_dim // call.num_heads
        shape = (x.size(0), call.num_heads, visible.shape[-1], head_dim)
        self._record(
            kernel, [shape] * 4, visible, masks=masks, convention=convention, cross=False, out=out
        )

    def _record_manual(self, found: ManualAttention) -> None:
        *lead, queries, keys = found.visible.shape
        if len(lead) == 1:
            batch, heads = self.modules.split_batch(lead[0], queries)
        else:
            batch, heads = math.prod(lead[:-1]), lead[-1] if lead else 1

        def shape(planes: int, length: int, dim: int) -> Shape:
            return (batch, planes // batch if batch and not planes % batch else 1, length, dim)

        matmul = found.matmul
        q: Shape = ()
        k: Shape = ()
        cross = queries != keys
        if matmul is not None:
            q = (batch, heads, queries, matmul.inner)
            k = shape(matmul.batch, keys, matmul.inner)
            cross = not matmul.origins[0] & matmul.origins[1]
        v = shape(found.values.shape[0], keys, found.values.shape[-1])
        out, out_shape = found.out, (batch, heads, queries, found.values.shape[-1])
        if out.numel() == math.prod(out_shape):
            out = out.reshape(out_shape)
        self._record(
            "softmax",
            [q, k, v, out_shape],
            found.visible.reshape(batch, heads, queries, keys),
            masks=masks_by_name(found.masks),
            convention=found.convention,
            cross=cross,
            out=out,
            after_softmax=found.after_softmax,
        )

    def _record(
        self,
        kernel: str,
        shapes: list[Shape],
        visible: torch.Tensor,
        *,
        masks: dict[str, Any],
        convention: str,
        cross: bool,
        out: Any,
        after_softmax: bool = False,
    ) -> None:
        """Adds a call with the shapes of q, k, v and the output, (batch, heads, length, dim)."""
        around, layer = self.modules.current, self.modules.layer
        if kernel == "encoder fast path":
            layer = f"{layer}.self_attn".removeprefix(".")
        elif around is not None and around.is_mha and kernel in ("sdpa", "softmax"):
            kernel, masks = "mha", around.masks() or masks
            if convention not in ("is_causal", "none") and not after_softmax:
                conventions = (
                    kernels.describe_convention(mask, "masks") for mask in masks.values()
                )
                convention = " + ".join(dict.fromkeys(conventions))
        q, k, v, o = shapes
        call = AttentionCall(
            index=0,
            layer=layer,
            kernel=kernel,
            q_shape=q,
            k_shape=k,
            v_shape=v,
            out_shape=o,
            shapes=(),
            visible=shrink(visible.detach().cpu().numpy()),
            masks={name: snapshot(mask) for name, mask in masks.items()},
            convention=convention,
            after_softmax=after_softmax,
            cross=cross,
            step=0,
        )
        self._pending.append(PendingCall(call, around, around.num_calls if around else 0))
        if around is not None:
            around.num_calls += 1
        if self._outputs is not None:
            self._outputs.append(snapshot(out))

    def _is_cross(self, q: Any, k: Any) -> bool:
        """Whether keys and queries have no common origin."""
        q_origins, k_origins = self._provenance.origins(q), self._provenance.origins(k)
        if q is k or q_origins is None or k_origins is None:
            return bool(q is not k and not q.is_nested and q.shape[-2] != k.shape[-2])
        return not q_origins & k_origins

    def _shape_4d(self, x: Any) -> Shape:
        """The shape as (batch, heads, length, head_dim)."""
        if x.is_nested:
            parts = [tuple(part.shape) for part in x.unbind()]
            max_length = max((shape[-2] for shape in parts), default=0)
            return (len(parts), parts[0][0] if parts else 0, max_length, x.size(-1))
        *lead, length, dim = x.shape
        if len(lead) == 1:
            return (*self.modules.split_batch(lead[0], length), length, dim)
        return (math.prod(lead[:-1]), lead[-1] if lead else 1, length, dim)


class _FunctionMode(TorchFunctionMode):  # type: ignore[misc]
    """Passes torch's Python functions to the tracer."""

    def __init__(self, tracer: AttentionTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the function."""
        return self.tracer.call_function(func, types, args, kwargs or {})


class _DispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """Passes ATen operators to the tracer."""

    supports_higher_order_operators = True

    def __init__(self, tracer: AttentionTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator."""
        return self.tracer.call_operator(func, args, kwargs or {})
