"""`select_backend` is the one decision: `attention` runs what `explain_backend` names, or refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode

import maskwright as mw
from maskwright.engine import fast_path, select
from maskwright.engine.select import backend_module
from maskwright.engine.validate import IMPLS
from tests._helpers.attention_inputs import (
    HAS_KERNEL,
    MASKS,
    T,
    Tensors,
    gradients,
    sizes_of,
    tensors,
)
from tests._helpers.run_python import run_python

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT = "native" if HAS_KERNEL else "blocks"


def attend(given: Tensors, mask: Any, **options: Any) -> Any:
    return mw.attention(*given, mask, enable_gqa=True, **options)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends whose forward pass was run, in order."""
    found: list[str] = []
    for name in IMPLS[1:]:
        module = backend_module(name)
        forward = module.forward

        def record(*args: Any, name: str = name, forward: Any = forward) -> Any:
            found.append(name)
            return forward(*args)

        monkeypatch.setattr(module, "forward", record)
    try_native = fast_path.try_native

    def record_native(*args: Any) -> Any:
        result = try_native(*args)
        if result is not None:
            found.append("native")  # by the same kernel
        return result

    monkeypatch.setattr(fast_path, "try_native", record_native)
    return found


CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "float32": ({"dtype": torch.float32}, {}),
    "bfloat16": ({"dtype": torch.bfloat16}, {}),
    "float64": ({}, {}),
    "dropout": ({"dtype": torch.float32}, {"dropout_p": 0.1}),
    "wide heads": ({"dtype": torch.float32, "dim": 300}, {}),
    "wide values": ({"dtype": torch.float32, "value_dim": 300}, {}),
    "logsumexp": ({"dtype": torch.float32}, {"return_lse": True}),
    "blocks": ({"dtype": torch.float32}, {"impl": "blocks"}),
    "sdpa": ({"dtype": torch.float32}, {"impl": "sdpa"}),
    "reference": ({"dtype": torch.float32}, {"impl": "reference"}),
    **({"native": ({"dtype": torch.float32}, {"impl": "native"})} if HAS_KERNEL else {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_attention_runs_the_explained_backend(name: str, ran: list[str]) -> None:
    sizes, options = CALLS[name]
    given = tensors(**sizes)
    choice = mw.explain_backend(*given, MASKS["window"], **options)
    attend(given, MASKS["window"], **options)
    assert ran == [choice.backend]
    shapes = [tuple(x.shape) for x in given]
    dtype = str(given.q.dtype).removeprefix("torch.")
    assert mw.explain_backend(*shapes, MASKS["window"], **options, dtype=dtype) == choice


@pytest.mark.parametrize(
    ("sizes", "options", "backend"),
    [
        ({"dtype": torch.float32}, {}, DEFAULT),
        ({"dtype": torch.float16}, {"dropout_p": 0.5}, DEFAULT),
        ({"dtype": torch.float64}, {}, "blocks"),
        ({"dtype": torch.float32, "dim": 257}, {}, "blocks"),
        ({"dtype": torch.float32, "dim": 0}, {}, "blocks"),
        ({"dtype": torch.float32, "value_dim": 0}, {}, "blocks"),
        ({"dtype": torch.float16, "dim": 1}, {}, DEFAULT),
        ({"dtype": torch.bfloat16, "dim": 256}, {}, DEFAULT),
    ],
)
def test_backend_on_cpu(sizes: Any, options: Any, backend: str) -> None:
    choice = mw.explain_backend(*tensors(**sizes), mw.causal(), **options)
    assert choice.backend == backend
    assert str(choice).startswith(f"{backend}: ")


@pytest.mark.parametrize(
    ("mask", "options", "backend"),
    [
        (mw.causal(), {}, "sdpa"),
        (mw.everything(), {}, "sdpa"),
        (mw.everything(), {"return_lse": True}, "flex"),
        (mw.window(back=3), {}, "flex"),
        (mw.window(back=3), {"dropout_p": 0.1}, "blocks"),
    ],
)
def test_backend_on_other_devices(mask: mw.Mask, options: Any, backend: str) -> None:
    shape = (2, 4, 64, 16)
    assert mw.explain_backend(shape, mask=mask, device="cuda:0", **options).backend == backend
    with pytest.raises(mw.Unsupported, match="cuda"):
        mw.explain_backend(shape, mask=mask, device="cuda", impl="native")


@pytest.mark.parametrize(
    ("device", "dim", "options"),
    [
        ("cuda", 8, {}),
        ("cuda", 16, {"dtype": "float64"}),
        ("mps", 16, {"requires_grad": True}),
        ("mps", 16, {"return_lse": True}),
        ("other", 16, {}),
    ],
)
def test_calls_that_flex_attention_does_not_support_on_a_device(
    device: str, dim: int, options: Any
) -> None:
    shape, mask = (2, 4, 64, dim), mw.window(back=3)
    choice = mw.explain_backend(shape, mask=mask, device=device, **options)
    assert choice.backend == "blocks"
    assert "flex" in choice.reason
    with pytest.raises(mw.Unsupported, match="flex"):
        mw.explain_backend(shape, mask=mask, device=device, impl="flex", **options)


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_triton_is_refused_on_devices_without_kernels(device: str) -> None:
    with pytest.raises(mw.Unsupported, match="CUDA and ROCm"):
        mw.explain_backend((2, 4, 64, 16), mask=mw.causal(), device=device, impl="triton")


def test_reason_names_unsupported_feature() -> None:
    wide = mw.explain_backend((1, 2, 8, 300), mask=mw.causal())
    double = mw.explain_backend((1, 2, 8, 4), mask=mw.causal(), dtype="float64")
    assert "300" in wide.reason
    assert "float64" in double.reason
    if not HAS_KERNEL:
        single = mw.explain_backend((1, 2, 8, 4), mask=mw.causal())
        assert "MASKWRIGHT_ISA" in single.reason


@pytest.mark.parametrize("name", MASKS)
def test_sdpa_equals_default_backend(name: str) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, value_dim=6, dtype=torch.float32)
    given = given.learning()
    found, right = (attend(given, MASKS[name], impl=impl) for impl in ("sdpa", DEFAULT))
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(found.square(), given),
        gradients(right.square(), given),
        atol=1e-4,
        rtol=1e-4,
    )


def test_scale_and_dropout_reach_sdpa() -> None:
    given = tensors()
    found = attend(given, mw.causal(), impl="sdpa", scale=0.1)
    torch.testing.assert_close(found, attend(given, mw.causal(), scale=0.1))
    values = torch.eye(T, dtype=torch.float64).expand(1, 2, T, T)
    dropped = attend(given._replace(v=values), mw.everything(), impl="sdpa", dropout_p=0.5) == 0
    assert 0.4 < float(dropped.double().mean()) < 0.6


class Seen(TorchFunctionMode):
    """Records the dropout of calls of SDPA."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout: list[float] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.dropout.append(kwargs["dropout_p"])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mask", ["causal", "window"])
def test_sdpa_without_weights_is_zero(mask: str) -> None:
    given = tensors(dtype=torch.float32).learning()
    with Seen() as seen:
        out = attend(given, MASKS[mask], impl="sdpa", dropout_p=1.0)
    assert seen.dropout == [0.0]  # kernels on GPUs refuse 1
    assert not out.any()
    assert not any(grad.any() for grad in gradients(out.cos(), given))


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


REFUSED = [
    ("sdpa", {}, {"return_lse": True}, "return_lse"),
    ("reference", {}, {"dropout_p": 0.1}, "dropout_p is 0.1"),
    ("flex", {}, {"dropout_p": 0.1}, "dropout_p is 0.1"),
    ("flex", {}, {"return_lse": True}, "return_lse"),
    *([("native", {}, {}, "float64")] if HAS_KERNEL else []),
    *([("native", {"dim": 257, "dtype": torch.float32}, {}, "257")] if HAS_KERNEL else []),
]


@pytest.mark.parametrize(("impl", "sizes", "options", "words"), REFUSED)
def test_explicit_backend_is_rejected_not_replaced(
    impl: str, sizes: Any, options: Any, words: str, ran: list[str]
) -> None:
    for call in (attend, lambda given, mask, **rest: mw.explain_backend(*given, mask, **rest)):
        with pytest.raises(mw.Unsupported, match=words) as refusal:
            call(tensors(**sizes), mw.causal(), impl=impl, **options)
        assert refusal.value.target == impl
    assert ran == []


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_flex_on_cpu_has_no_gradients(name: str) -> None:
    given = tensors(dtype=torch.float32)
    getattr(given, name).requires_grad_()
    with pytest.raises(mw.Unsupported, match="gradient"):
        attend(given, mw.causal(), impl="flex")


@pytest.mark.parametrize("impl", ["fast", "", None, 3, "Native", "strips"])
def test_unknown_backend(impl: Any) -> None:
    for call in (
        lambda: attend(tensors(), mw.causal(), impl=impl),
        lambda: mw.explain_backend((1, 1, 4, 4), mask=mw.causal(), impl=impl),
    ):
        with pytest.raises(mw.ArgumentError, match="impl") as error:
            call()
        assert all(f"'{known}'" in str(error.value) for known in IMPLS)


# ── flex ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def graphs() -> Iterator[Any]:
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor
def test_flex_is_compiled_once_for_masks_of_one_shape(graphs: Any) -> None:
    given = tensors(dtype=torch.float32, heads=2)
    for name in ("causal", "window", "documents", "prefix", "ahead"):  # one interval per row
        with torch.no_grad():
            found = attend(given, MASKS[name], impl="flex")
        torch.testing.assert_close(found, attend(given, MASKS[name]))
        assert graphs() == 1


# ── without the kernel ────────────────────────────────────────────────────────────────────────────


MISSING = """
import json, warnings, torch, maskwright as mw
x = torch.ones(1, 1, 4, 2)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        mw.attention(x, x, x, mw.causal())
print(json.dumps([(w.category.__name__, str(w.message), w.filename, w.lineno) for w in caught]))
"""


def test_missing_kernel_is_reported_once_and_disabled_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert json.loads(run_python(MISSING, MASKWRIGHT_ISA="none").stdout) == []
    monkeypatch.delenv("MASKWRIGHT_ISA", raising=False)
    for code in (MISSING, MISSING.replace("torch,", "torch, torch._dynamo,")):
        done = run_python(code, MASKWRIGHT_KERNEL="missing.so")
        ((kind, message, *place),) = json.loads(done.stdout)
        assert kind == "UserWarning"
        assert "pip install" in message
        assert place == ["<string>", 1 + code[: code.index("mw.attention")].count("\n")]


# ── explain_backend ───────────────────────────────────────────────────────────────────────────────


def test_work_counts_tiles_and_cells() -> None:
    bound = mw.window(back=15).on(256, heads=4)
    for impl in ("auto", "blocks"):
        work = mw.explain_backend((2, 4, 256, 16), mask=mw.window(back=15), impl=impl).work
        assert work.cells_visible == 2 * bound.count()
        assert work.cells_visible <= work.cells_computed <= 2 * 4 * 256 * 256
        tiles = bound.tiles(work.block_q, work.block_kv).counts()
        assert work.tiles_visited == 8 * (tiles["partial"] + tiles["full"])
        assert work.tiles == 8 * sum(tiles.values())
        assert 0 < work.useful_share <= 1
        assert work.as_dict()["useful_share"] == work.useful_share
    forward = mw.explain_backend((2, 4, 256, 16), mask=mw.causal()).work
    backward = mw.explain_backend((2, 4, 256, 16), mask=mw.causal(), backward=True).work
    assert backward.milliseconds > forward.milliseconds


def test_shapes_are_checked_as_tensors_are() -> None:
    with pytest.raises(mw.ArgumentError, match=r"q has shape \(2, 3\)"):
        mw.explain_backend((2, 3))
    for shape in ((1, 1, -4, 4), (1, 1, 4, "a"), (1, 1, 4, 2.5)):
        with pytest.raises(mw.ArgumentError, match="q has shape"):
            mw.explain_backend(shape)
    with pytest.raises(mw.ArgumentError, match="dtype is 'int8'"):
        mw.explain_backend((1, 1, 4, 4), dtype="int8")  # attention refuses such tensors too
    with pytest.raises(mw.ArgumentError, match="enable_gqa"):
        mw.explain_backend((1, 4, 8, 16), (1, 2, 8, 16))
    shapes = ((1, 4, 8, 16), (1, 2, 9, 16), (1, 2, 9, 5))
    assert mw.explain_backend(*shapes, mw.causal(), enable_gqa=True).work.cells_visible > 0
    with pytest.raises(mw.FrameError, match="bound to 64 queries"):
        mw.explain_backend((1, 1, 32, 8), mask=mw.causal().on(64))
    with pytest.raises(mw.ArgumentError, match="device"):
        mw.explain_backend((1, 1, 32, 8), device="a b")


@pytest.mark.parametrize(
    ("device", "mask", "options", "backend"),
    [
        ("cpu", mw.causal(), {}, DEFAULT),
        ("cpu", mw.causal(), {"dtype": "float64"}, "blocks"),
        ("cuda", mw.causal(), {}, "flex"),
        ("cuda", mw.window(back=3), {"requires_grad": True, "return_lse": True}, "flex"),
        ("cuda", mw.stride(2), {}, "blocks"),  # more intervals per row than the tables have
        ("cuda", mw.causal(), {"dropout_p": 0.1}, "blocks"),
        ("cuda", mw.causal(), {"dtype": "float64"}, "blocks"),
        ("cuda", mw.causal(), {"impl": "blocks"}, "blocks"),
        ("mps", mw.causal(), {}, "blocks"),
        ("cpu", mw.causal(), {"impl": "flex"}, "flex"),
    ],
)
def test_backend_of_compiled_calls(device: str, mask: Any, options: Any, backend: str) -> None:
    shape = (2, 4, 64, 16)
    for given in (mask, mask.on(64)):
        choice = mw.explain_backend(shape, mask=given, device=device, compiled=True, **options)
        assert choice.backend == backend
    if backend == "flex" and "impl" not in options:
        eager = mw.explain_backend(shape, mask=mask, device=device, **options)
        assert eager.reason != choice.reason


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_backends_that_do_not_exist_in_graphs(impl: str) -> None:
    with pytest.raises(mw.ArgumentError, match="compiled graph"):
        mw.explain_backend((2, 4, 64, 16), mask=mw.causal(), impl=impl, compiled=True)
    x = np.zeros((1, 2, 8, 4), np.float32)
    with pytest.raises(mw.ArgumentError, match="numpy"):
        mw.explain_backend(x, x, x, compiled=True)


@pytest.mark.skipif(not HAS_KERNEL, reason="needs the C kernel")
def test_numpy_arrays() -> None:
    x = np.zeros((1, 2, 8, 4), np.float32)
    assert mw.explain_backend(x, x, x, mw.causal()).backend == "native"
    with pytest.raises(mw.Unsupported, match="torch tensors"):
        mw.explain_backend(x, x, x, mw.causal(), impl="blocks")


def test_suite_runs_with_kernel_unless_disabled() -> None:
    assert (select.loaded().module is not None) == HAS_KERNEL
