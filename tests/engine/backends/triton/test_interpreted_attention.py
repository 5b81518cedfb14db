"""`attention(..., impl="triton")` in Triton's interpreter: autograd, graphs, transforms, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import maskwright as mw
from maskwright.bias.terms import DistanceTerm, TensorTerm
from tests._helpers.attention_inputs import MASKS, T, error, gradients, sizes_of, tensors
from tests._helpers.score_terms import TermBias

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
FLOAT = torch.float32


def attend(given: Any, mask: Any, impl: str = "triton", **options: Any) -> Any:
    return mw.attention(*given, mask, enable_gqa=True, impl=impl, **options)


@pytest.mark.parametrize("name", ["causal", "by head", "empty sequence"])
def test_gradients_of_output_and_logsumexp(name: str) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=1, dtype=FLOAT).learning()
    found, right = [], []
    for impl, results in (("triton", found), ("reference", right)):
        out, lse = attend(given, MASKS[name], impl, return_lse=True)
        total = out.sin().sum() + lse.masked_fill(lse.isinf(), 0.0).cos().sum()
        results += [out, lse, *torch.autograd.grad(total, given, materialize_grads=True)]
    assert all(error(a, b) <= 2e-5 for a, b in zip(found, right, strict=True))


def test_softcap_bias_and_sinks() -> None:
    given = tensors(heads=2, dtype=FLOAT).learning()
    made = torch.Generator().manual_seed(4)
    terms = (
        DistanceTerm(torch.randn(2, 2 * T - 1, generator=made), T - 1),
        TensorTerm(torch.randn(1, 1, T, 1, generator=made)),
    )
    sinks = torch.randn(2, generator=made).requires_grad_()
    options = {"softcap": 2.0, "bias": TermBias(terms), "sinks": sinks}
    results = []
    for impl in ("triton", "reference"):
        out = attend(given, MASKS["sinks"], impl, **options)
        results.append((out, *gradients(out, (*given, sinks))))
    assert all(error(a, b) <= 2e-5 for a, b in zip(*results, strict=True))


def test_dropout_equals_the_blocks_backend() -> None:
    given = tensors(dtype=FLOAT).learning()
    results = []
    for impl in ("triton", "blocks"):
        torch.manual_seed(3)
        out = attend(given, MASKS["window"], impl, dropout_p=0.4)
        results.append((out, *gradients(out, given)))
    assert all(error(a, b) <= 2e-5 for a, b in zip(*results, strict=True))


def test_a_compiled_graph_is_not_compiled_again_for_a_new_mask_or_length() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for length, back in ((33, 4), (T, 7), (40, 20)):
        given, mask = tensors(q_len=length, dtype=FLOAT).learning(), mw.window(back=back)
        out, right = compiled(given, mask), attend(given, mask, "reference")
        found, truth = (out, *gradients(out, given)), (right, *gradients(right, given))
        assert all(error(a, b) <= 2e-5 for a, b in zip(found, truth, strict=True))
        counts.append(counter.frame_count)
    assert counts[1:] == [counts[1]] * 2


def test_vmap_folds_the_mapped_dimension() -> None:
    given = tensors(batch=3, dtype=FLOAT)
    mapped = torch.func.vmap(lambda q, k, v: attend((q, k, v), mw.causal()))
    found = mapped(*(x[:, None] for x in given))
    assert error(found[:, 0], attend(given, mw.causal(), "reference")) <= 1e-5


def test_fake_tensors_have_the_shapes_of_the_results() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        given = [mode.from_tensor(x) for x in tensors(dtype=FLOAT)]
        out, lse = attend(given, mw.causal(), return_lse=True)
    assert out.shape == (1, 2, T, 4)
    assert lse.shape == (1, 2, T)


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [({"dtype": torch.float64}, "float64"), ({"dim": 300, "dtype": FLOAT}, "300")],
)
def test_refusals_name_the_value(sizes: dict[str, Any], problem: str) -> None:
    with pytest.raises(mw.errors.Unsupported, match=problem):
        attend(tensors(**sizes), mw.causal())


def test_explain_backend_names_triton() -> None:
    given = tensors(dtype=FLOAT)
    assert mw.explain_backend(*given, mw.causal(), impl="triton").backend == "triton"


def test_verification_in_the_interpreter() -> None:
    from maskwright.engine import gpu_choice, gpu_verify

    found = gpu_verify.verify("cpu", 64, ("float32", "bfloat16"), ("sinks", "no row"))
    assert len(found.checks) == 4
    assert all(check.passed for check in found.checks), str(found)
    assert not gpu_choice.choice_path().exists() or gpu_choice.device_key() is None
