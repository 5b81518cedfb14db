"""Every way gives the same numbers, or says in a sentence why it can't; and never another's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.utils import counters

import maskwright as mw
from maskwright.engine.native.bindings import loaded
from maskwright.engine.routes import IMPLS
from tests.engine.given import MASKS, T, Tensors, gradients, sizes_of, tensors

if TYPE_CHECKING:
    from collections.abc import Iterator


def attend(given: Tensors, mask: Any, **options: Any) -> Any:
    return mw.attention(*given, mask, enable_gqa=True, **options)


@pytest.mark.parametrize("impl", ["strips", "dense", "reference"])
@pytest.mark.parametrize("name", MASKS)
def test_the_same_numbers_each_way(name: str, impl: str) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, value_dim=6).learning()
    found, right = (attend(given, MASKS[name], impl=way) for way in (impl, "auto"))
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(gradients(found.square(), given), gradients(right.square(), given))


@pytest.mark.parametrize("mask", [None, mw.everything(), mw.causal(), mw.window(back=T)])
def test_sdpa_without_a_mask_tensor(mask: Any) -> None:
    given = tensors(kv_heads=1, value_dim=6).learning()
    found, right = (attend(given, mask, impl=way) for way in ("sdpa", "auto"))
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(gradients(found.square(), given), gradients(right.square(), given))


@pytest.mark.parametrize("impl", ["dense", "sdpa"])
def test_scale_and_dropout_reach_torch(impl: str) -> None:
    given = tensors()
    found = attend(given, mw.causal(), impl=impl, scale=0.1)
    torch.testing.assert_close(found, attend(given, mw.causal(), scale=0.1))
    values = torch.eye(T, dtype=torch.float64).expand(1, 2, T, T)
    dropped = attend(given._replace(v=values), mw.everything(), impl=impl, dropout_p=0.5) == 0
    assert 0.4 < float(dropped.double().mean()) < 0.6


@pytest.mark.parametrize("way", ["strips", "reference"])
def test_the_logsumexp_each_way(way: str) -> None:
    for mask in (mw.causal(), MASKS["holes"]):
        found, right = (attend(tensors(), mask, impl=i, return_lse=True) for i in (way, "auto"))
        torch.testing.assert_close(found, right)


# ── what a way can't do ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mask", "sizes"),
    [
        (mw.window(back=3), {}),
        (mw.causal(), {"q_len": 4, "kv_len": 9}),  # from the lower right
        (mw.padding(lengths=[3]), {}),
        (mw.nothing(), {}),
    ],
)
def test_sdpa_refuses_what_needs_a_mask_tensor(mask: mw.Mask, sizes: Any) -> None:
    with pytest.raises(mw.Unsupported, match=r'is neither. Pass impl="dense"') as refusal:
        attend(tensors(**sizes), mask, impl="sdpa")
    assert refusal.value.target == "sdpa"
    assert refusal.value.term == repr(mask)


REFUSED = [
    ("sdpa", {"return_lse": True}, "has no return_lse"),
    ("dense", {"return_lse": True}, "has no return_lse"),
    ("reference", {"dropout_p": 0.1}, "has no dropout"),
    ("flex", {"dropout_p": 0.1}, "has no dropout"),
    ("flex", {"return_lse": True}, "neither gradients nor a logsumexp"),
]


@pytest.mark.parametrize(("impl", "options", "words"), REFUSED)
def test_a_way_that_can_not_is_no_other_way(impl: str, options: Any, words: str) -> None:
    with pytest.raises(mw.Unsupported, match=words) as refusal:
        attend(tensors(), mw.causal(), impl=impl, **options)
    assert refusal.value.target == impl
    assert str(refusal.value).count(". ") == 1  # what can't be, and what to do


@pytest.mark.parametrize("learning", ["q", "k", "v"])
def test_flex_on_the_cpu_has_no_gradients(learning: str) -> None:
    given = tensors(dtype=torch.float32)
    getattr(given, learning).requires_grad_()
    with pytest.raises(mw.Unsupported, match=r'Pass impl="strips", or detach q, k and v'):
        attend(given, mw.causal(), impl="flex")


@pytest.mark.parametrize("impl", ["fast", "", None, 3, "Strips"])
def test_an_unknown_way(impl: Any) -> None:
    for call in (
        lambda: attend(tensors(), mw.causal(), impl=impl),
        lambda: mw.explain_route(mw.causal(), 4, impl=impl),
    ):
        with pytest.raises(mw.ArgumentError, match="impl is") as error:
            call()
        assert all(f"'{known}'" in str(error.value) for known in IMPLS)


def test_strips_are_for_the_cpu() -> None:
    with pytest.raises(mw.Unsupported, match="on the CPU only, and q is on cuda"):
        mw.explain_route(mw.causal(), 4, impl="strips", device="cuda")


# ── flex ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def graphs() -> Iterator[Any]:
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_flex_is_compiled_once_for_masks_of_like_shape(graphs: Any) -> None:
    given = tensors(dtype=torch.float32, heads=2)
    for name in ("causal", "window", "documents", "prefix", "ahead"):  # one interval a row
        with torch.no_grad():
            found = attend(given, MASKS[name], impl="flex")
        torch.testing.assert_close(found, attend(given, MASKS[name]))
        assert graphs() == 1


# ── explaining ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (mw.everything(), "SDPA, no mask"),
        (mw.nothing(), "nothing to compute"),
        (mw.causal(), "SDPA, is_causal"),
    ],
)
def test_the_kinds_of_plans(mask: mw.Mask, kind: str) -> None:
    route = mw.explain_route(mask, 4096, heads=8, impl="strips")
    assert (route.impl, route.kind) == ("strips", kind)


def test_a_route_says_why_and_shows_its_plan() -> None:
    route = mw.explain_route(mw.window(back=255), 8192, heads=8, impl="strips")
    assert (route.impl, route.kind) == ("strips", "strips")
    first, why, *plan = str(route).splitlines()
    assert first == "strips: strips"
    assert "by the cost table, where SDPA with a dense mask would take" in why
    assert "8192 queries × 8192 keys, batch 1, heads 8" in plan[0]
    assert "cells seen" in plan[1]
    assert route.plan is not None
    assert route.plan.useful == mw.window(back=255).on(8192, heads=8).count()


@pytest.mark.parametrize("impl", ["sdpa", "dense", "flex", "reference"])
def test_a_way_asked_for_is_the_way(impl: str) -> None:
    route = mw.explain_route(mw.causal(), 64, impl=impl)
    assert (route.impl, route.plan) == (impl, None)
    assert str(route).startswith(f"{impl}: ")


@pytest.mark.parametrize(
    ("mask", "impl"),
    [(mw.causal(), "sdpa"), (mw.everything(), "sdpa"), (mw.window(back=3), "flex")],
)
def test_other_devices_take_torchs_own_ways(mask: mw.Mask, impl: str) -> None:
    assert mw.explain_route(mask, 64, device="cuda").impl == impl


@pytest.mark.skipif(loaded().library is None, reason="the kernel was not built")
def test_the_kernel_is_the_usual_way_here() -> None:
    route = mw.explain_route(mw.window(back=255), 8192, heads=8)
    assert (route.impl, route.kind, route.plan) == ("native", "the kernel in C", None)
    assert f"its instructions are {loaded().isa}" in route.why
    assert route == mw.explain_route(mw.window(back=255), 8192, heads=8, impl="native")
    assert "16,384 cells" in mw.explain_route(mw.everything(), 64, batch=2, heads=2).why
    with pytest.raises(mw.Unsupported, match="runs on the CPU only, and q is on cuda"):
        mw.explain_route(mw.causal(), 4, impl="native", device="cuda")


def test_a_bound_mask_is_explained_on_its_own_frame() -> None:
    bound = mw.window(back=3).on(64, heads=2)
    assert mw.explain_route(bound, 64, heads=2, impl="strips").plan is not None
    with pytest.raises(mw.FrameError, match="bound to 64 queries"):
        mw.explain_route(bound, 32)
