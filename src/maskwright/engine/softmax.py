"""Masked softmax, masked matrix products, and the merge of partial results by their logsumexp.

All functions guarantee that a masked cell has no influence: whatever it holds, NaN and infinity
included, it changes neither a result nor a gradient.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import torch

MAX_EXACT_LSE: Final = 8192.0  # as in the C kernel: weights from a larger logsumexp are inexact


def masked_softmax(scores: Any, visible: Any = None) -> tuple[Any, Any]:
    """Softmax over the last axis, restricted to the visible keys.

    A fully masked row, and a row whose visible scores are all -inf, has weights 0 and a logsumexp
    of -inf. A row with a visible score of +inf has NaN weights and a logsumexp of +inf.

    Args:
        scores: Scores, (..., queries, keys), a torch tensor or a numpy array.
        visible: Boolean, broadcastable to `scores`, True where the query attends to the key.
            None means that masked scores are -inf already.

    Returns:
        The weights, shaped as `scores`, and the logsumexp, (..., queries).

    >>> import numpy as np
    >>> from maskwright.engine.softmax import masked_softmax
    >>> weights, lse = masked_softmax(np.zeros((2, 2)), np.array([[True, False], [False, False]]))
    >>> weights.tolist(), lse.tolist()
    ([[1.0, 0.0], [0.0, 0.0]], [0.0, -inf])
    """
    if isinstance(scores, np.ndarray):
        return _masked_softmax_numpy(scores, visible)
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    masked = scores == -math.inf
    empty = masked.all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    weights = scores.softmax(-1).masked_fill(masked, 0.0)
    return weights, scores.logsumexp(-1).masked_fill(empty.squeeze(-1), -math.inf)


def _masked_softmax_numpy(scores: Any, visible: Any) -> tuple[Any, Any]:
    if visible is not None:
        scores = np.where(visible, scores, -math.inf)
    m = scores.max(axis=-1, keepdims=True, initial=-math.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = np.exp(scores - np.where(m == -math.inf, 0.0, m))
        total = weights.sum(axis=-1, keepdims=True)
        lse = np.where(m == math.inf, math.inf, m + np.log(total))
        weights = np.where(m == -math.inf, 0.0, weights / total)
    return weights, lse[..., 0]


def weights_from_lse(
    scores: torch.Tensor, lse: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    """The softmax weights of visible cells, recomputed from the logsumexp; 0 in masked cells.

    A large logsumexp has rounded the logarithm of the sum away. Where it is that of these scores,
    the sum is computed again; it may be over the scores of further keys, too.

    Args:
        scores: Scores, (..., queries, keys).
        lse: Logsumexp, (..., queries), finite.
        visible: Boolean, broadcastable to `scores`.

    >>> import torch
    >>> from maskwright.engine.softmax import weights_from_lse
    >>> weights_from_lse(torch.full((1, 2), -1e9), torch.tensor([-1e9]), torch.tensor([True])).tolist()
    [[0.5, 0.5]]
    """
    import torch

    weights = (scores - lse.unsqueeze(-1)).exp().masked_fill(~visible, 0.0)
    large = lse.abs() > MAX_EXACT_LSE
    from maskwright._torch_state import has_values

    if not has_values(lse) or not bool(large.any()):
        return weights
    exact, sums = masked_softmax(scores, visible)
    same = (sums - lse).abs() <= 4 * torch.finfo(scores.dtype).eps * lse.abs()
    return exact.where((large & same).unsqueeze(-1), weights)


def merge(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
    """Attention over the union of two disjoint key sets, from (out, lse) over each of them.

    Args:
        first: Output (..., queries, v_head_dim) and logsumexp (..., queries) over the first keys.
        second: The same over the second keys.

    Returns:
        Output and logsumexp over all keys.

    >>> import torch
    >>> from maskwright.engine.softmax import merge
    >>> one, zero = torch.ones(1, 1), torch.zeros(1)
    >>> merge((one, zero), (3 * one, zero))[0].tolist()
    [[2.0]]
    """
    import torch

    lse = torch.logaddexp(first[1], second[1])
    whole = lse.masked_fill(lse == -math.inf, 0.0)  # a fully masked row has no weights
    weighted = (
        # A part without visible keys adds nothing, also where the other part is not finite.
        (out * (lse_part - whole).exp().unsqueeze(-1)).masked_fill(
            (lse_part == -math.inf).unsqueeze(-1), 0.0
        )
        for out, lse_part in (first, second)
    )
    first_out, second_out = weighted
    return first_out + second_out, lse


def masked_scores(x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Scores x @ y.mT of the visible cells, 0 elsewhere; differentiable any number of times."""
    return _functions()[0].apply(x, y, visible)


def masked_matmul(a: torch.Tensor, b: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """A @ b in which the masked entries of `a` contribute nothing; differentiable as above.

    Unlike a product with zeros, this also holds where `b` is NaN or infinite.
    """
    return _functions()[1].apply(a, b, visible)


def _visible_product(a: torch.Tensor, b: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    import torch

    a = a.masked_fill(~visible, 0.0)
    from maskwright._torch_state import has_values

    if has_values(b) and bool(b.isfinite().all()):
        return a @ b
    # Multiply the finite entries, then find the visible pairs that make an entry infinite or NaN.
    kind = a.dtype
    out = a.masked_fill(~a.isfinite(), 0.0) @ b.masked_fill(~b.isfinite(), 0.0)

    def meets(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Whether some visible pair has an entry of `a` in `rows` and one of `b` in `columns`."""
        return (rows & visible).to(kind) @ columns.to(kind) > 0

    def products(of_a: float, sign: int) -> torch.Tensor:
        """Whether some product is +inf (`of_a` is inf and `sign` 1), and the like."""
        return meets(a == of_a, b * sign > 0) | meets(a * sign > 0, b == of_a)

    up = products(math.inf, 1) | products(-math.inf, -1)
    down = products(math.inf, -1) | products(-math.inf, 1)
    undefined = meets(a.isnan(), torch.ones_like(b)) | meets(visible, b.isnan())
    undefined = undefined | meets(a.isinf(), b == 0) | meets(a == 0, b.isinf())
    out = out + up.to(kind).masked_fill(up, math.inf)
    out = out - down.to(kind).masked_fill(down, math.inf)
    return out.masked_fill(undefined, math.nan)


def _product_gradients(gradients: Any, saved: Any, grad: Any) -> tuple[Any, ...]:
    """The gradients of two operands from `gradients(x, y, visible, grad)`, and None for `visible`."""
    from maskwright._torch_state import is_batched, map_batched
    from maskwright.bias.values import check_storage

    x, y, visible = saved
    check_storage(x, y)
    if not is_batched(grad):
        return *gradients(x, y, visible, grad), None

    def of_batch(grads: Any) -> Any:
        a, b = (z.expand(grads.shape[0], *z.shape) for z in (x, y))
        return gradients(a, b, visible, grads)

    return *map_batched(of_batch, grad), None


def _product_rule(product: Any, operands: Any, da: Any, db: Any) -> Any:
    """The tangent of a product of two operands, of which either may have no tangent."""
    a, b, visible = operands
    if da is None:
        return product.apply(a, db, visible)
    first = product.apply(da, b, visible)
    return first if db is None else first + product.apply(a, db, visible)


_CLASSES: list[tuple[Any, Any]] = []


def _functions() -> tuple[Any, Any]:
    """The two autograd functions, which are each other's derivative; made when torch is loaded."""
    if _CLASSES:
        return _CLASSES[0]
    import torch

    class MaskedScores(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any, y: Any, visible: Any) -> Any:
            return (x @ y.mT).masked_fill(~visible, 0.0)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx: Any, dx: Any, dy: Any, _: Any) -> Any:
            return _product_rule(MaskedScores, ctx.saved_tensors, dx, dy)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
            return _product_gradients(MaskedScores.gradients, ctx.saved_tensors, grad)

        @staticmethod
        def gradients(x: Any, y: Any, visible: Any, grad: Any) -> tuple[Any, ...]:
            dx = MaskedMatmul.apply(grad, y, visible)
            return dx, MaskedMatmul.apply(grad.mT, x, visible.mT)

    class MaskedMatmul(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(a: Any, b: Any, visible: Any) -> Any:
            return _visible_product(a, b, visible)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx: Any, da: Any, db: Any, _: Any) -> Any:
            return _product_rule(MaskedMatmul, ctx.saved_tensors, da, db)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
            return _product_gradients(MaskedMatmul.gradients, ctx.saved_tensors, grad)

        @staticmethod
        def gradients(a: Any, b: Any, visible: Any, grad: Any) -> tuple[Any, ...]:
            da = MaskedScores.apply(grad, b, visible)
            return da, MaskedMatmul.apply(a.mT, grad, visible.mT)

    _CLASSES.append((MaskedScores, MaskedMatmul))
    return _CLASSES[0]
