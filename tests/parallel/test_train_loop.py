"""`CPShard`: shards of tensors, options of attention, and training of unmodified models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import maskwright as mw
from maskwright.parallel.layout import balance
from maskwright.parallel.train_loop import CPShard
from tests._helpers import parallel_training
from tests._helpers.process_pool import JobError

if TYPE_CHECKING:
    from tests._helpers.process_pool import Pool


def shard_and_gather(group: Any, strategy: str) -> tuple[bool, bool, float, float]:
    shard = CPShard(
        balance(mw.causal().on(11), dist.get_world_size(group), strategy=strategy), group
    )
    whole = torch.arange(2 * 11 * 3).reshape(2, 11, 3)
    losses = torch.arange(11.0).requires_grad_()
    weights = (torch.arange(11) % 2).float()
    mean = shard.mean(shard.take(losses, 0), shard.take(weights, 0))
    mean.backward()
    assert losses.grad is not None
    dist.all_reduce(losses.grad, group=group)
    return (
        torch.equal(shard.all_gather(shard.take(whole)), whole),
        torch.equal(shard.take(torch.arange(11), 0), shard.positions),
        mean.item(),
        (losses.grad - weights / 5).abs().max().item(),
    )


@pytest.mark.parametrize("strategy", ["contiguous", "zigzag", "chunked"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_shard_and_gather(pool: Pool, strategy: str, ranks: int) -> None:
    for back, named, mean, off in pool.run(shard_and_gather, ranks, strategy):
        assert back
        assert named
        assert mean == 5.0
        assert off < 1e-7


def attend(group: Any, dtype: str, mask: Any, options: dict[str, Any]) -> Any:
    """`maskwright.attention` of this rank's rows of a random sequence."""
    shard = CPShard(balance(mw.causal().on(11), dist.get_world_size(group)), group)
    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 11, 8, generator=made).to(getattr(torch, dtype)) for _ in range(3))
    with shard.attention():
        found = mw.attention(*(shard.take(x, 2) for x in (q, k, v)), mask, **options)
    assert torch.equal(mw.attention(q, k, v, mw.causal()), mw.attention(q, k, v, mw.causal()))
    right = mw.attention(q, k, v, mw.causal(), impl="reference", return_lse=True)
    found = found if options.get("return_lse") else (found,)
    return max(
        float((shard.take(x, 2).double() - y.double()).abs().max())
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
        ("float32", {"dropout_p": 0.1}, "dropout_p=0.1"),
        ("float32", {"q_start": 3}, "q_start=3"),
    ],
    ids=str,
)
def test_options_are_used_or_refused(
    pool: Pool, dtype: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(JobError) as error:
        pool.run(attend, 2, dtype, mw.causal(), options)
    for message in error.value.first_lines():
        assert message.startswith("Unsupported: ")
        assert named in message
    assert max(pool.run(attend, 2, "float32", mw.causal(), {"q_start": 0})) < 1e-5


def test_bound_masks_with_another_alignment_are_refused(pool: Pool) -> None:
    with pytest.raises(JobError, match="q_start=2"):
        pool.run(attend, 2, "float32", mw.causal().on(5, 7), {})


@pytest.mark.parametrize(("kind", "ranks"), [("gpt", 2), ("gpt", 3), ("llama", 2)])
def test_models_train_as_in_one_process(pool: Pool, kind: str, ranks: int) -> None:
    alone = parallel_training.one_process(kind)
    assert alone[-1] < alone[0]
    for losses in pool.run(parallel_training.context_parallel, ranks, kind):
        np.testing.assert_allclose(losses, alone, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("use_fsdp", [False, True], ids=["ddp", "fsdp2"])
def test_batch_and_sequence_are_sharded(pool: Pool, kind: str, use_fsdp: bool) -> None:
    alone = parallel_training.one_process(kind)
    for losses in pool.run(parallel_training.context_and_data_parallel, 4, kind, use_fsdp):
        np.testing.assert_allclose(losses, alone, atol=1e-4)
