"""Training of small models in one process and over ranks; the models know nothing of ranks."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import maskwright as mw
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.parallel.checkpoint import load, save
from maskwright.parallel.layout import balance
from maskwright.parallel.train_loop import CPShard

TOKENS, BATCH, VOCAB_SIZE, STEPS = 50, 4, 31, 20


def build(kind: str) -> torch.nn.Module:
    """A small model with fixed initial weights."""
    torch.manual_seed(0)
    if kind == "gpt":
        return GPT(GPTConfig(VOCAB_SIZE, block_size=TOKENS, n_embd=16, n_head=2, n_layer=2))
    from transformers import LlamaConfig, LlamaForCausalLM

    from maskwright.integrations.transformers import register

    register()
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="maskwright",
    )
    return LlamaForCausalLM(config)


def logits_of(model: Any, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The logits of either kind of model."""
    if isinstance(getattr(model, "module", model), GPT) or isinstance(model, GPT):
        return model(ids, positions=positions)
    return model(ids, position_ids=positions.expand(ids.shape[0], -1), use_cache=False).logits


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, each of which determines the next one, and labels."""
    drawn = torch.randint(VOCAB_SIZE, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    rows = [drawn]
    for _ in range(TOKENS):
        rows.append((3 * rows[-1] + 1) % VOCAB_SIZE)
    whole = torch.cat(rows, 1)
    return whole[:, :-1], whole[:, 1:]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(
    model: Any,
    optimizer: torch.optim.Optimizer,
    shard: CPShard | None = None,
    steps: range = range(STEPS),
    scale: int = 1,  # of the loss, where gradients are averaged over ranks
    dp: Any = None,  # the mesh of the ranks that have different parts of the batch
) -> list[float]:
    """The losses of some steps."""
    losses = []
    for step in steps:
        ids, labels = batch(step)
        if dp is not None:
            ids, labels = (x.chunk(dp.size())[dp.get_local_rank()] for x in (ids, labels))
        if shard is not None:
            ids, labels = shard.take(ids), shard.take(labels)
        optimizer.zero_grad()
        with nullcontext() if shard is None else shard.attention(mw.causal()):
            logits = logits_of(
                model, ids, torch.arange(TOKENS) if shard is None else shard.positions
            )
        each = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        loss = each.mean() if shard is None else shard.mean(each)
        (scale * loss).backward()
        if shard is not None and scale == 1:
            shard.all_reduce_gradients(model)
        optimizer.step()
        mean = loss.detach().clone()
        if dp is not None:
            dist.all_reduce(mean, group=dp.get_group())
        losses.append(mean.item() / (1 if dp is None else dp.size()))
    return losses


@functools.cache
def one_process(kind: str) -> list[float]:
    """The losses in one process."""
    model = build(kind)
    return train(model, sgd(model))


def context_parallel(group: Any, kind: str) -> list[float]:
    """The losses with the sequence sharded over the group."""
    model = build(kind)
    layout = balance(mw.causal().on(TOKENS), dist.get_world_size(group))
    return train(model, sgd(model), CPShard(layout, group))


def context_and_data_parallel(group: Any, kind: str, use_fsdp: bool) -> list[float]:
    """The losses with batch and sequence over two ranks each, with DDP or FSDP2 over all four."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    model: Any = build(kind)
    if use_fsdp:
        fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    shard = CPShard(balance(mw.causal().on(TOKENS), 2), mesh["cp"])
    return train(model, sgd(model), shard, scale=2, dp=mesh["dp"])


def interrupted(group: Any, folder: str, first: int, stop: int) -> list[float]:
    """The losses of some steps with FSDP2, from a checkpoint and into one."""
    model: Any = build("gpt")
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = sgd(model)
    if first:
        assert load(folder, model, optimizer, group) == {"step": first}
    ranks = dist.get_world_size(group)
    shard = CPShard(balance(mw.causal().on(TOKENS), ranks), group)
    losses = train(model, optimizer, shard, range(first, stop), scale=ranks)
    save(folder, model, optimizer, {"step": stop}, group)
    return losses
