"""What the processes of a pool train: models that know nothing of ranks, each on its share."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import maskwright as mw
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.parallel.balance import balance
from maskwright.parallel.checkpoint import load, save
from maskwright.parallel.share import Share

TOKENS, BATCH, VOCABULARY, STEPS = 50, 4, 31, 20


def made(kind: str) -> torch.nn.Module:
    """A small model, the same whenever it is made."""
    torch.manual_seed(0)
    if kind == "gpt":
        return GPT(GPTConfig(VOCABULARY, context=TOKENS, width=16, heads=2, layers=2))
    from transformers import LlamaConfig, LlamaForCausalLM

    from maskwright.integrations.transformers import register

    register()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="maskwright",
    )
    return LlamaForCausalLM(config)


def logits_of(model: Any, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """By either kind of model."""
    if isinstance(getattr(model, "module", model), GPT) or isinstance(model, GPT):
        return model(ids, positions=positions)
    return model(ids, position_ids=positions.expand(ids.shape[0], -1), use_cache=False).logits


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, each of which follows from the one before, and what comes after each."""
    drawn = torch.randint(VOCABULARY, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    rows = [drawn]
    for _ in range(TOKENS):
        rows.append((3 * rows[-1] + 1) % VOCABULARY)
    whole = torch.cat(rows, 1)
    return whole[:, :-1], whole[:, 1:]


@functools.cache
def alone(kind: str) -> list[float]:
    """The losses in one process."""
    model = made(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        ids, labels = batch(step)
        logits = logits_of(model, ids, torch.arange(TOKENS))
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_context(group: Any, kind: str) -> list[float]:
    """The losses with the sequence shared out over the group."""
    model = made(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mask = mw.causal()
    share = Share(balance(mask.on(TOKENS), dist.get_world_size(group)), group)
    losses = []
    for step in range(STEPS):
        ids, labels = (share.take(x) for x in batch(step))
        optimizer.zero_grad()
        with share.attention(mask):
            logits = logits_of(model, ids, share.positions)
        loss = share.mean(cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none"))
        loss.backward()
        share.sum_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_both(group: Any, kind: str, sharded: bool) -> list[float]:
    """The batch over two ranks, and the sequence over two: plain, or with weights sharded too."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    model: Any = made(kind)
    if sharded:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mask = mw.causal()
    share = Share(balance(mask.on(TOKENS), 2), mesh["cp"])
    row = mesh.get_local_rank("dp")
    losses = []
    for step in range(STEPS):
        ids, labels = (share.take(x.chunk(2)[row]) for x in batch(step))
        optimizer.zero_grad()
        with share.attention(mask):
            logits = logits_of(model, ids, share.positions)
        loss = share.mean(cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none"))
        (2 * loss).backward()  # both average over all four ranks, of which two share a sequence
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=mesh.get_group("dp"))
        losses.append(mean.item() / 2)
    return losses


def cut_short(group: Any, folder: str, first: int, last: int) -> list[float]:
    """The losses of some steps with weights sharded over the group, from a checkpoint and into one."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model: Any = made("gpt")
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if first:
        assert load(folder, model, optimizer, group) == first
    ranks = dist.get_world_size(group)
    share = Share(balance(mw.causal().on(TOKENS), ranks), group)
    losses = []
    for step in range(first, last):
        ids, labels = (share.take(x) for x in batch(step))
        optimizer.zero_grad()
        with share.attention(mw.causal()):
            logits = logits_of(model, ids, share.positions)
        loss = share.mean(cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none"))
        (ranks * loss).backward()
        optimizer.step()
        losses.append(loss.item())
    save(folder, model, optimizer, last, group)
    return losses
