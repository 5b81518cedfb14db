"""Names that the code blocks of docs/ use without defining them: a model, token ids, a group."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy

import maskwright as mw
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
from maskwright.parallel.train_loop import CPShard

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS, WORDS = 16, 20


class Either:
    """A decoder of ids, with or without a cache; of two texts, a translator.

    No nn.Module, so that an audit has no other paths and dtypes to run it on, which take long.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.decoder = GPT(GPTConfig(WORDS, block_size=32, n_embd=16, n_head=2, n_layer=2))
        self.translator = Seq2Seq(Seq2SeqConfig(WORDS, WORDS, 32, n_embd=16, n_head=2, n_layer=1))

    def __call__(
        self,
        ids: Tensor | None = None,
        cache: Any = False,
        src: Tensor | None = None,
        tgt: Tensor | None = None,
    ) -> Any:
        if src is not None and tgt is not None:
            return self.translator(src, tgt, mw.padding(ids=src, pad_id=0))
        assert ids is not None
        if cache is False:
            return self.decoder(ids, mw.padding(ids=ids, pad_id=0))
        caches = cache or self.decoder.new_kv_caches()
        return self.decoder(ids, kv_caches=caches), caches


@contextmanager
def namespace_for(page: str) -> Iterator[dict[str, Any]]:
    """Yield the predefined names of a page."""
    if page == "parallel.md":
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield _on_one_rank()
        finally:
            dist.destroy_process_group()
    else:
        yield _models()


def _models() -> dict[str, Any]:
    ids = torch.randint(1, WORDS, (2, 12))
    src = torch.randint(1, WORDS, (2, 6))
    src[0, 4:] = 0
    model = Either()
    return {"model": model, "build": lambda: model, "ids": ids, "src": src, "tgt": ids[:, :5]}


def _on_one_rank() -> dict[str, Any]:
    ids = torch.randint(WORDS, (1, TOKENS))
    q, k, v = torch.randn(3, 1, 2, TOKENS, 8).unbind()
    return {
        "mask": mw.causal(),
        "tokens": TOKENS,
        "ranks": 1,
        "rank": 0,
        "q": q,
        "k": k,
        "v": v,
        "mesh": DeviceMesh("cpu", [0], mesh_dim_names=("cp",)),
        "model": GPT(GPTConfig(WORDS, block_size=32, n_embd=16, n_head=2, n_layer=1)),
        "ids": ids,
        "labels": ids.roll(-1, 1),
        "CPShard": CPShard,
        "cross_entropy": cross_entropy,
    }
