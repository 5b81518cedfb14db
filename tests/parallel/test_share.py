"""Shares of a sequence: into the ranks' order and back, and models trained on them unedited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import maskwright as mw
from maskwright.parallel.balance import balance
from maskwright.parallel.share import Share
from tests.parallel import training
from tests.parallel.pool import JobError

if TYPE_CHECKING:
    from tests.parallel.pool import Pool


def there_and_back(group: Any, how: str) -> tuple[bool, bool, float, float]:
    share = Share(balance(mw.causal().on(11), dist.get_world_size(group), how=how), group)
    whole = torch.arange(2 * 11 * 3).reshape(2, 11, 3)
    losses = torch.arange(11.0).requires_grad_()
    weights = (torch.arange(11) % 2).float()
    mean = share.mean(share.take(losses, 0), share.take(weights, 0))
    mean.backward()
    assert losses.grad is not None
    dist.all_reduce(losses.grad, group=group)
    return (
        torch.equal(share.join(share.take(whole)), whole),
        torch.equal(share.take(torch.arange(11), 0), share.positions),
        mean.item(),
        (losses.grad - weights / 5).abs().max().item(),
    )


@pytest.mark.parametrize("how", ["contiguous", "zig-zag", "chunked"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_there_and_back(pool: Pool, how: str, ranks: int) -> None:
    for back, named, mean, off in pool.run(there_and_back, ranks, how):
        assert back
        assert named
        assert mean == 5.0
        assert off < 1e-7


def attend(group: Any, dtype: str, mask: Any, options: dict[str, Any]) -> Any:
    """`maskwright.attention` of this rank's rows of a random sequence."""
    share = Share(balance(mw.causal().on(11), dist.get_world_size(group)), group)
    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 11, 8, generator=made).to(getattr(torch, dtype)) for _ in range(3))
    with share.attention():
        found = mw.attention(*(share.take(x, 2) for x in (q, k, v)), mask, **options)
    assert torch.equal(mw.attention(q, k, v, mw.causal()), mw.attention(q, k, v, mw.causal()))
    right = mw.attention(q, k, v, mw.causal(), impl="reference", return_lse=True)
    found = found if options.get("return_lse") else (found,)
    return max(
        float((share.take(x, 2).double() - y.double()).abs().max())
        for x, y in zip(right, found, strict=False)
    )


@pytest.mark.parametrize("impl", ["auto", "native", "blocks"])
def test_attention_by_a_named_backend(pool: Pool, impl: str) -> None:
    options = {"impl": impl, "return_lse": True}
    assert max(pool.run(attend, 2, "float32", mw.causal(), options)) < 1e-5


@pytest.mark.parametrize(
    ("dtype", "options", "named"),
    [
        ("float32", {"impl": "sdpa"}, 'impl="sdpa"'),
        ("float32", {"impl": "flex"}, 'impl="flex"'),
        ("float32", {"impl": "reference"}, 'impl="reference"'),
        ("float64", {"impl": "native"}, 'impl="native"'),
        ("float32", {"dropout_p": 0.1}, "dropout_p is 0.1"),
        ("float32", {"q_start": 3}, "q_start is 3"),
    ],
    ids=str,
)
def test_options_are_used_or_refused(
    pool: Pool, dtype: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(JobError) as error:
        pool.run(attend, 2, dtype, mw.causal(), options)
    for said in error.value.said:
        assert said is not None
        assert said.startswith("Unsupported: ")
        assert named in said.splitlines()[0]
    assert max(pool.run(attend, 2, "float32", mw.causal(), {"q_start": 0})) < 1e-5


def test_bound_masks_with_another_alignment_are_refused(pool: Pool) -> None:
    with pytest.raises(JobError, match="q_start is 2"):
        pool.run(attend, 2, "float32", mw.causal().on(5, 7), {})


@pytest.mark.parametrize(("kind", "ranks"), [("gpt", 2), ("gpt", 3), ("llama", 2)])
def test_models_train_as_in_one_process(pool: Pool, kind: str, ranks: int) -> None:
    alone = training.alone(kind)
    assert alone[-1] < alone[0]
    for losses in pool.run(training.by_context, ranks, kind):
        np.testing.assert_allclose(losses, alone, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_batch_and_sequence_are_shared_out(pool: Pool, kind: str, sharded: bool) -> None:
    alone = training.alone(kind)
    for losses in pool.run(training.by_both, 4, kind, sharded):
        np.testing.assert_allclose(losses, alone, atol=1e-4)
