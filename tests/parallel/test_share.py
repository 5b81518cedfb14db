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
