"""PyTorch's operator samples of `scaled_dot_product_attention`, computed by maskwright.

`CHECKS` has the checks by name. Each takes a `Sample` and raises AssertionError where the result is
less accurate than it has to be: the error against PyTorch's math path in float64 is at most `FACTOR`
times that of the math path in the sample's dtype, or that of rounding the inputs or the result once.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
import warnings
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

import maskwright as mw
from maskwright.integrations.torch_function import _as_4d

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "nn.functional.scaled_dot_product_attention"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FACTOR = 3.0  # of the error of PyTorch's math path, and of rounding
COPIES = 2  # elements that vmap maps over
SEED = 20

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Sample:
    """One call of `scaled_dot_product_attention`: q, k and v, and the mask or None."""

    name: str
    tensors: Tensors
    attn_mask: torch.Tensor | None
    options: dict[str, Any]

    @property
    def inputs(self) -> Tensors:
        """The tensors that need gradients."""
        is_bias = self.attn_mask is not None and self.attn_mask.is_floating_point()
        return (*self.tensors, self.attn_mask) if is_bias else self.tensors  # type: ignore[return-value]

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        """The sample with other tensors."""
        mask = None if self.attn_mask is None else change(self.attn_mask)
        return Sample(self.name, tuple(map(change, self.tensors)), mask, self.options)


@lru_cache(maxsize=1)
def operator() -> Any:
    """PyTorch's description of the operator, with its samples.

    Importing it takes seconds, needs a package for tests of PyTorch, and forbids to set the flags of
    `torch.backends`; the two latter are undone.
    """
    flags: Any = torch.backends
    allowed = flags.__allow_nonbracketed_mutation_flag
    if importlib.util.find_spec("expecttest") is None:
        stub: Any = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.testing._internal.common_methods_invocations import op_db
    finally:
        flags.__allow_nonbracketed_mutation_flag = allowed
    return next(op for op in op_db if op.name == NAME)


def samples(dtype: torch.dtype, *, repeated: bool = True) -> Iterator[Sample]:
    """The samples of a dtype.

    Args:
        dtype: The dtype of all tensors.
        repeated: Include samples that differ from others in their random values only.
    """
    seen = set()
    for index, given in enumerate(operator().sample_inputs("cpu", dtype)):
        tensors = (given.input, *given.args)
        options = dict(given.kwargs)
        attn_mask = options.pop("attn_mask", None)
        shapes = ", ".join(str(tuple(x.shape)) for x in (*tensors, attn_mask) if x is not None)
        name = f"{shapes}, {options}"
        if repeated or name not in seen:
            yield Sample(f"{index}: {name}", tensors, attn_mask, options)
        seen.add(name)


# ── the operator ──────────────────────────────────────────────────────────────────────────────────


def read_mask(sample: Sample) -> tuple[mw.Mask | mw.BoundMask, Any]:
    """The mask of a sample, and the bias or None."""
    q, k, v = sample.tensors
    if sample.options.get("is_causal"):
        return mw.causal().on(q.shape[-2], k.shape[-2], q_start=0), None
    given = sample.attn_mask
    if given is None:
        return mw.everything(), None
    if max(q.dim(), k.dim(), v.dim()) == given.dim() == 3:  # (batch, queries, keys)
        given = given[:, None]
    if given.dtype != torch.bool:
        return mw.from_additive(given)
    return mw.dense(given[(None,) * (4 - given.dim())].cpu()), None


def attend(sample: Sample, mask: Any = None, bias: Any = None) -> torch.Tensor:
    """The sample by maskwright, under a mask that was read before or under its own."""
    if mask is None:
        mask, bias = read_mask(sample)
    options = {name: x for name, x in sample.options.items() if name != "is_causal"}
    if bias is not None:
        tensors, lead = _as_4d(sample.tensors, options.get("enable_gqa", False))
        out = mw.attention(*tensors, mask, bias=bias, **options)
        return out.reshape(*lead, *out.shape[2:])  # type: ignore[no-any-return]
    return F.scaled_dot_product_attention(*sample.tensors, attn_mask=mask, **options)


def attend_math(sample: Sample, keep: torch.Tensor | None = None) -> torch.Tensor:
    """The sample by PyTorch's math path; `keep` is the dropout mask."""
    options = dict(sample.options)
    dropout_p = options.pop("dropout_p", 0.0)
    if keep is None and dropout_p:
        raise ValueError("the dropout mask is missing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the dropout mask is for tests only
        return torch._scaled_dot_product_attention_math(
            *sample.tensors, sample.attn_mask, dropout_p, dropout_mask=keep, **options
        )[0]


def kept_weights(sample: Sample) -> torch.Tensor | None:
    """The dropout mask that maskwright draws for a sample, read from the weights; None without."""
    if not sample.options.get("dropout_p"):
        return None
    q, k, v = sample.tensors
    return seeded(Sample(sample.name, (q, k, _identity(v)), sample.attn_mask, sample.options)) != 0


def _identity(v: torch.Tensor) -> torch.Tensor:
    """Values with which the output is the softmax weights after dropout."""
    return torch.eye(v.shape[-2], dtype=v.dtype, device=v.device).expand(*v.shape[:-1], -1)


# ── comparison ────────────────────────────────────────────────────────────────────────────────────


def check_output(out: torch.Tensor, sample: Sample, keep: torch.Tensor | None) -> None:
    """Raise if an output is less accurate than PyTorch's math path and rounding allow."""
    math = partial(attend_math, keep=keep)
    exact = math(sample.changed(_as_double))
    rounding = math(sample.changed(_rounded)) - exact
    _check("output", sample, out, math(sample), exact, rounding)


def check_gradients(
    grads: Tensors, sample: Sample, keep: torch.Tensor | None, weight: torch.Tensor
) -> None:
    """Raise if gradients of the weighted sum of the output are less accurate than allowed.

    The rounding of output and logsumexp counts: the backward pass reads them, as FlashAttention's.
    """
    math = partial(attend_math, keep=keep)
    usual = gradients(sample, math, weight)
    exact = gradients(sample.changed(_as_double), math, weight)
    rounded = gradients(sample.changed(_rounded), math, weight)
    saved = _errors_by_saved_results(sample, math, weight)
    for index, grad in enumerate(grads):
        rounding = (rounded[index] - exact[index]).abs() + saved[index]
        _check(f"gradient {index}", sample, grad, usual[index], exact[index], rounding)


def _check(
    name: str,
    sample: Sample,
    result: torch.Tensor,
    usual: torch.Tensor,
    exact: torch.Tensor,
    rounding: torch.Tensor,
) -> None:
    if result.shape != exact.shape or result.dtype != usual.dtype:
        raise AssertionError(
            f"{sample.name}: {name} is {result.dtype} {tuple(result.shape)}, expected "
            f"{usual.dtype} {tuple(exact.shape)}"
        )
    result, usual, exact, rounding = (x.detach() for x in (result, usual, exact, rounding))
    errors = [float((x.double() - exact).abs().max()) for x in (result, usual)]
    inputs = float(rounding.abs().max())
    last = torch.finfo(result.dtype).eps * float(exact.abs().max())
    if not errors[0] <= FACTOR * max(errors[1], inputs, last):
        raise AssertionError(
            f"{sample.name}: the error of {name} is {errors[0]:.3g}, that of PyTorch's math path "
            f"{errors[1]:.3g}, that of rounded inputs {inputs:.3g}, of a rounded result {last:.3g}"
        )


def _as_double(x: torch.Tensor) -> torch.Tensor:
    return x.detach().double() if x.is_floating_point() else x


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """In float64, changed by one rounding of the dtype in which scores are computed."""
    if not x.is_floating_point():
        return x
    signs = torch.randint(2, x.shape, generator=torch.Generator().manual_seed(2)) * 2.0 - 1
    return _as_double(x) * (1 + _score_eps(x) * signs.double())


def _score_eps(x: torch.Tensor) -> float:
    """The rounding of the dtype in which the scores of a tensor are computed."""
    return torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps


def _errors_by_saved_results(
    sample: Sample, math: Callable[[Sample], torch.Tensor], weight: torch.Tensor
) -> Tensors:
    """How the gradients change if the backward pass reads a rounded output and logsumexp.

    The gradient of the scores is P * (dO · v - delta) with delta = sum(dO * O) and P = exp(S - lse). An
    error of delta enters like a gradient of the logsumexp, one of lse as a factor of the row.
    """
    exact = _learning(sample.changed(_as_double))
    q, k, _ = exact.tensors
    eps = _score_eps(sample.tensors[0])
    out = math(exact)
    saved = out.detach().to(sample.tensors[0].dtype).double()
    delta = (weight * (saved - out.detach())).sum(-1).abs() + eps * (weight * saved).abs().sum(-1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if exact.attn_mask is not None:
        scores = scores + exact.attn_mask
    if sample.options.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), float("-inf"))
    lse = scores.logsumexp(-1)
    factor = eps * lse.detach().abs().unsqueeze(-1)
    by_out, by_lse = (
        torch.autograd.grad(loss, exact.inputs, materialize_grads=True, allow_unused=True)
        for loss in ((lse * delta).sum(), (out * weight * factor).sum())
    )
    return tuple(x.abs() + y.abs() for x, y in zip(by_out, by_lse, strict=True))


def gradients(
    sample: Sample, call: Callable[[Sample], torch.Tensor], weight: torch.Tensor
) -> Tensors:
    """Gradients of all inputs of the sum of the output times a weight."""
    learning = _learning(sample)
    out = call(learning)
    return torch.autograd.grad(out, learning.inputs, weight.to(out.dtype))


def _learning(sample: Sample) -> Sample:
    """The sample with inputs that require gradients."""
    return sample.changed(lambda x: x.detach().requires_grad_(x.is_floating_point()))


def weight_of(sample: Sample) -> torch.Tensor:
    """A random gradient of the output, which the sample's dtype represents."""
    q, k, v = sample.tensors
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    random = torch.Generator().manual_seed(1)
    weight = torch.randn(*lead, q.shape[-2], v.shape[-1], generator=random)
    return weight.to(q.dtype).double()


def seeded(sample: Sample, *read: Any) -> torch.Tensor:
    """The sample by maskwright, with the dropout mask of `kept_weights`."""
    torch.manual_seed(SEED)
    return attend(sample, *read)


# ── checks ────────────────────────────────────────────────────────────────────────────────────────


def check_forward(sample: Sample) -> None:
    """The output."""
    check_output(seeded(sample), sample, kept_weights(sample))


def check_backward(sample: Sample) -> None:
    """The gradients."""
    weight = weight_of(sample)
    check_gradients(gradients(sample, seeded, weight), sample, kept_weights(sample), weight)


def check_noncontiguous(sample: Sample) -> None:
    """Output and gradients of tensors with gaps between their elements."""
    strided, weight, keep = sample.changed(_with_gaps), weight_of(sample), kept_weights(sample)
    check_output(seeded(strided), sample, keep)
    check_gradients(gradients(strided, seeded, weight), sample, keep, weight)


def _with_gaps(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((x, torch.full_like(x, 9)), -1)[..., 0]


def check_vmap(sample: Sample) -> None:
    """The outputs of a batch of samples under `torch.vmap`; the mask is shared."""
    out, keeps, batch = _vmapped(sample, attend)
    for n in range(COPIES):
        check_output(out[n], batch[n], None if keeps is None else keeps[n])


def check_vmap_grad(sample: Sample) -> None:
    """The gradients under `torch.vmap(torch.func.grad(...))`."""
    weight = weight_of(sample)

    def grad(element: Sample, *read: Any) -> Tensors:
        def loss(*tensors: torch.Tensor) -> torch.Tensor:
            out = attend(Sample(element.name, tensors, None, element.options), *read)
            return (out * weight.to(out.dtype)).sum()

        return torch.func.grad(loss, (0, 1, 2))(*element.tensors)  # type: ignore[no-any-return]

    grads, keeps, batch = _vmapped(sample, grad)
    for n in range(COPIES):
        own = tuple(x[n] for x in grads)
        check_gradients(own, batch[n], None if keeps is None else keeps[n], weight)


def _vmapped(sample: Sample, function: Callable[..., Any]) -> tuple[Any, Any, list[Sample]]:
    """The results of a function of samples under vmap, their dropout masks, and the samples."""
    read = read_mask(sample)
    stacked = [torch.stack([x * 0.5**n for n in range(COPIES)]) for x in sample.tensors]
    batch = [
        Sample(sample.name, tuple(x[n] for x in stacked), sample.attn_mask, sample.options)
        for n in range(COPIES)
    ]

    def run(call: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        torch.manual_seed(SEED)
        return torch.vmap(
            lambda *x: call(Sample(sample.name, x, None, sample.options), *read),
            randomness="different",
        )(*tensors)

    keeps = None
    if sample.options.get("dropout_p"):
        q, k, v = stacked
        keeps = run(attend, q, k, _identity(v)) != 0
    return run(function, *stacked), keeps, batch


def check_gradcheck(sample: Sample) -> None:
    """Gradients against finite differences, in float64 for any dtype of the sample."""

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        mask = tensors[3] if len(tensors) > 3 else sample.attn_mask
        return seeded(Sample(sample.name, tensors[:3], mask, sample.options))

    torch.autograd.gradcheck(call, _learning(sample.changed(_as_double)).inputs, fast_mode=True)


def check_compiled(sample: Sample) -> None:
    """Output and gradients in one graph of torch.compile, without a break."""

    def call(element: Sample) -> torch.Tensor:
        torch.manual_seed(SEED)
        return compiled()(element.tensors, element.options, *read_mask(element))  # type: ignore[no-any-return]

    weight, keep = weight_of(sample), kept_weights(sample)
    learning = _learning(sample)
    with torch._dynamo.config.patch(recompile_limit=1000), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")  # Dynamo reads it
        out = call(learning)
    check_output(out, sample, keep)
    grads = torch.autograd.grad(out, learning.inputs, weight.to(out.dtype))
    check_gradients(grads, sample, keep, weight)


@lru_cache(maxsize=1)
def compiled() -> Any:
    """The replacement in a graph, compiled once for all samples of a shape."""

    def call(tensors: Tensors, options: dict[str, Any], mask: Any, bias: Any) -> torch.Tensor:
        return attend(Sample("compiled", tensors, None, options), mask, bias)

    return torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=False)


CHECKS: dict[str, Callable[[Sample], None]] = {
    "forward": check_forward,
    "backward": check_backward,
    "noncontiguous": check_noncontiguous,
    "vmap": check_vmap,
    "vmap of grad": check_vmap_grad,
    "gradcheck": check_gradcheck,
    "compiled": check_compiled,
}
