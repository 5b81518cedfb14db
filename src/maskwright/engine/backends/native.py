"""Temporary adapter."""

from __future__ import annotations

from maskwright.engine.native.library import loaded


def unsupported(params):
    s = params.shape
    if loaded().functions is None:
        return f"is missing: {loaded().why}"
    if params.dropout_p:
        return "no dropout yet"
    if (
        params.dtype not in ("float32", "bfloat16", "float16")
        or params.device != "cpu"
        or not (0 < s.head_dim <= 256 and 0 < s.v_head_dim <= 256)
    ):
        return f"takes float32, bfloat16 and float16 on the CPU with head_dim 1 to 256, and q is {params.dtype} on {params.device} with {s.head_dim}"
    return None


def instruction_set():
    return loaded().isa


def forward(params, q, k, v):
    from maskwright.engine.native import call

    if not (q.numel() and k.shape[2]):
        import torch

        return q.new_zeros((*q.shape[:3], v.shape[3])), torch.full(q.shape[:3], -float("inf"))
    return call.forward(params.mask, q, k, v, params.scale)


def backward(params, saved, grad_out, grad_lse):
    import torch

    from maskwright.engine.native import call

    if not (saved.q.numel() and saved.k.shape[2]):
        return tuple(torch.zeros_like(x) for x in saved[:3])
    return call.backward(params.mask, grad_out, grad_lse, *saved, params.scale, alone=False)


def forward_numpy(params, q, k, v):
    from maskwright.engine.native import arrays

    return arrays.attention(
        q, k, v, params.mask, scale=params.scale, return_lse=True, enable_gqa=True
    )
